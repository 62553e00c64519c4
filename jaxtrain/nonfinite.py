"""The end of a run whose loss or gradients stopped being finite, told so that a person can look in the right place."""

import jax
import jax.numpy as jnp

from jaxtrain.checkpoint import leaves
from jaxtrain.errors import NonFiniteError
from jaxtrain.step import Counters, TrainState


def raise_if_halted(counters: Counters | None, state: TrainState) -> None:
    """Raise NonFiniteError, naming the step, what was not finite and where first, if the state accepts no more updates.

    `counters` may be older than the state. Reads the device only to tell.
    """
    if counters is None or not counters.halted:
        return
    now = jax.device_get(state.counters)
    step, leaf = int(now.bad_step), int(now.bad_leaf)
    params = leaves.named(state.params)
    bad_params = [path for path, param in params.items() if not jnp.isfinite(param).all()]
    if bad_params:
        where = f"the parameter {bad_params[0]} itself is not finite"
    elif leaf >= 0:
        where = f"the first gradient that is not finite is that of {list(params)[leaf]}"
    else:
        where = "its gradients are finite, the loss is not"
    raise NonFiniteError(
        f"The loss or its gradient is not finite at step {step}: {where}. Steps left out, without an update: "
        f"{int(now.in_a_row)} in a row, {int(now.skipped)} in all. Checkpoints are from before. "
        "Lower --config.optimizer.learning_rate, set --config.clip_norm, look at the data of that step, or leave such "
        "batches out by --config.nonfinite.policy=skip and a --config.nonfinite.limit above what happens."
    )
