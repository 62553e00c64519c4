"""Where the gradients of a batch's shards meet, and when the parameters that fsdp splits are gathered.

A shard is the part of a microbatch that one place along the batch axes of the mesh holds. By default the gradient of
each microbatch is summed over the shards as soon as it is there (`Reduction`). `Once` keeps a sum for each shard over
all microbatches, whole and in float32, and reduces the sums once. Inside the loss the shards then know nothing of each
other.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxtrain.models import logical
from jaxtrain.sharding import BATCH_AXES, replicated
from jaxtrain.typing import Array, Params, PyTree


@dataclasses.dataclass(frozen=True)
class Reduction:
    """Gradients meet after each microbatch.

    shardings: of each parameter; None leaves all to the compiler.
    compute_dtype: what the model computes in, and parameters are gathered in.
    gather_once: gather them for all microbatches, not where each one needs them.
    """

    shardings: PyTree = None
    compute_dtype: Any = jnp.float32
    gather_once: bool = False

    def prepared(self, params: Params) -> Params:
        """Give the parameters that all microbatches start from."""
        return self.gathered(params) if self.gather_once else params

    def gathered(self, params: Params) -> Params:
        """Give every place along the batch axes all of the parameters."""

        def gather(param: Array, sharding: NamedSharding) -> Array:
            if jnp.issubdtype(param.dtype, jnp.floating):
                # Converted where they lie, so that it is the smaller numbers that travel.
                param = jax.lax.with_sharding_constraint(param.astype(self.compute_dtype), sharding)
            return jax.lax.with_sharding_constraint(param, _without_batch_axes(sharding))

        return jax.tree.map(gather, params, self.shardings)

    def spread(self, microbatch: Callable) -> Callable:
        """Give `microbatch` with gradients, loss, metrics and `counts` as they are kept until the batch is complete."""

        def kept(*arguments: Any) -> Any:
            result = microbatch(*arguments)
            return result._replace(grads=self.placed(result.grads))

        return kept

    def zeros(self, tree: PyTree) -> PyTree:
        """Give the sums of nothing yet, float32, for gradients or losses of these shapes."""
        return jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), tree)

    def total(self, sums: PyTree) -> PyTree:
        """Give what was kept of gradients or losses as sums over the whole batch."""
        return sums

    def placed(self, grads: Params) -> Params:
        """Split gradients like their parameters."""
        if self.shardings is None:
            return grads
        return jax.tree.map(jax.lax.with_sharding_constraint, grads, self.shardings)

    def merged(self, metrics: dict[str, Any], counts: Array) -> dict[str, Any]:
        """Merge metrics that are stacked over the microbatches, of those that count."""
        return merge_stacked(metrics, counts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Once(Reduction):
    """Gradients are kept for each shard, [shard, ...], and meet after the last microbatch."""

    mesh: Mesh

    @property
    def num_shards(self) -> int:
        """Places along the batch axes."""
        return math.prod(self.mesh.shape[axis] for axis in BATCH_AXES)

    def spread(self, microbatch: Callable) -> Callable:
        """Run it on each shard by itself; the key of shard i is `fold_in(key, i)`. The model state is not changed."""
        split = NamedSharding(self.mesh, PartitionSpec(BATCH_AXES))

        def kept(params: Params, model_state: PyTree, batch: PyTree, key: Array) -> Any:
            def split_rows(x: Array) -> Array:
                rows = x.reshape(self.num_shards, -1, *x.shape[1:])
                return jax.lax.with_sharding_constraint(rows, split)

            # Else the compiler may move activations to the parameters, and reduce them for each microbatch.
            params = params if self.gather_once else self.gathered(params)
            keys = jax.vmap(lambda shard: jax.random.fold_in(key, shard))(jnp.arange(self.num_shards))
            each = jax.vmap(microbatch, in_axes=(None, None, 0, 0), spmd_axis_name=BATCH_AXES)
            layout = logical.in_force()
            with logical.laid_out(layout and layout.without(BATCH_AXES)):  # inside, a batch is that of one shard
                result = each(params, model_state, jax.tree.map(split_rows, batch), keys)
            return result._replace(grads=self._kept(result.grads), model_state=model_state)

        return kept

    def _kept(self, grads: Params) -> Params:
        def keep(grad: Array, sharding: NamedSharding) -> Array:
            spec = PartitionSpec(BATCH_AXES, *_without_batch_axes(sharding).spec)
            return jax.lax.with_sharding_constraint(grad, NamedSharding(self.mesh, spec))

        return jax.tree.map(keep, grads, self.shardings)

    def zeros(self, tree: PyTree) -> PyTree:
        """Give zeros for each shard."""
        return jax.tree.map(lambda x: jnp.zeros((self.num_shards, *x.shape), jnp.float32), tree)

    def total(self, sums: PyTree) -> PyTree:
        """Reduce over the shards."""
        return jax.tree.map(lambda x: jnp.sum(x, axis=0), sums)

    def merged(self, metrics: dict[str, Any], counts: Array) -> dict[str, Any]:
        """Merge over the microbatches of each shard, then over the shards. counts: [microbatch, shard]."""
        by_shard = jax.vmap(merge_stacked, in_axes=1, spmd_axis_name=BATCH_AXES)(metrics, counts)
        everywhere = jax.lax.with_sharding_constraint((by_shard, jnp.any(counts, axis=0)), replicated(self.mesh))
        return merge_stacked(*everywhere)


EACH = Reduction()


def changed_state(task: Any, microbatch: PyTree) -> list[str]:
    """Give the paths of the model state that the loss does not hand back as it was when training. Shapes are enough."""
    key = jax.random.key(0)
    params, model_state = jax.eval_shape(lambda batch: nn.unbox(task.init(key, batch)), microbatch)

    def after(model_state: PyTree, params: Params, batch: PyTree) -> PyTree:
        return task.loss(params, model_state, batch, key, True).model_state

    jaxpr = jax.make_jaxpr(after)(model_state, params, microbatch).jaxpr
    paths = [
        jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in jax.tree.leaves_with_path(model_state)
    ]
    return [path for path, old, new in zip(paths, jaxpr.invars, jaxpr.outvars, strict=False) if new is not old]


def _without_batch_axes(sharding: NamedSharding) -> NamedSharding:
    """The same without the batch axes."""
    parts = [part if isinstance(part, tuple) else (part,) for part in sharding.spec]
    kept = [tuple(axis for axis in part if axis is not None and axis not in BATCH_AXES) for part in parts]
    return NamedSharding(sharding.mesh, PartitionSpec(*(part or None for part in kept)))


def select(condition: Array, new: PyTree, old: PyTree) -> PyTree:
    """Choose one of two trees of the same structure by a scalar bool."""
    return jax.tree.map(lambda n, o: jnp.where(condition, n, o), new, old)


def merge_stacked(metrics: dict[str, Any], counts: Array) -> dict[str, Any]:
    """Merge metrics whose leaves are stacked over microbatches in dim 0, those of the microbatches that count.

    counts: [microbatch] bool. No neutral element is asked of a metric; if nothing counts, the first one is given.
    """
    first = jax.tree.map(lambda x: x[0], (metrics, counts))
    rest = jax.tree.map(lambda x: x[1:], (metrics, counts))

    def body(carry: tuple, item: tuple) -> tuple[tuple, None]:
        (merged, begun), (other, counts) = carry, item
        both = {name: metric.merge(other[name]) for name, metric in merged.items()}
        return (select(counts, select(begun, both, other), merged), begun | counts), None

    return jax.lax.scan(body, first, rest)[0][0]  # a loop, so that many microbatches make no larger program
