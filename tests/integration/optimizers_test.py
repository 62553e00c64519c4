"""Each kind of optimizer state comes back from a checkpoint bit for bit, onto the devices where it was."""

import json
import math

import jax
import pytest

from jaxtrain import train
from jaxtrain.tasks.classification import Classification
from tests.integration.outcomes import bits, lines, without_times
from tests.integration.parts import CrashError

NUM_STEPS, CRASH_AT = 12, 6
OPTIMIZERS = {
    "adamw": {"type": "optax:adamw"},
    "lion": {"type": "optax:lion"},
    "adafactor": {"type": "optax:adafactor", "min_dim_size_to_factor": 8, "momentum": 0.9},
    "muon": {"type": "optax.contrib:muon"},
    "sgd": {"type": "optax:sgd", "momentum": 0.9, "nesterov": True},
    "groups and average": {"type": "optax:adamw", "weight_decay": 0.1},
}
BESIDE = {
    "groups and average": {
        "param_groups": {
            "first": {"match": "^Dense_0/", "freeze": True},
            "last": {"match": "^Dense_2/", "learning_rate_factor": 0.5, "weight_decay": 0.3},
        },
        "ema": {"decay": 0.9},
    }
}


def config(name: str, **callbacks: dict) -> dict:
    """8 devices, of which 4 share the state out; 2.4 epochs."""
    data = {"type": "tests.integration.examples:Pictures", "num_examples": 80}
    model = {"type": "jaxtrain.models.mlp:MLP", "features": (32, 16), "num_outputs": 2, "dropout": 0.1}
    return {
        "duration": f"{NUM_STEPS} steps",
        "batch_size": 16,
        "data": data,
        "task": {"type": f"{Classification.__module__}:Classification", "model": model},
        "optimizer": {"learning_rate": 1e-2, **OPTIMIZERS[name]},
        **BESIDE.get(name, {}),
        "clip_norm": 1.0,
        "accumulation": {"microbatches": 2},
        "mesh": {"data": 2, "fsdp": 4},
        "sharding": {"min_size": 0},
        "checkpoint": {"every": f"{CRASH_AT} steps"},
        "log": {"every": "4 steps", "tensorboard": False},
        "callbacks": callbacks,
    }


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_run_ended_by_an_exception_resumes_bit_for_bit(tmp_path, optimizer):
    wanted = train(config(optimizer), tmp_path / "whole")

    crashing = {"type": "tests.integration.parts:Crashing", "step": CRASH_AT}
    with pytest.raises(CrashError):
        train(config(optimizer, crashing=crashing), tmp_path / "w")
    assert [line["step"] for line in lines(tmp_path / "w")] == [4]
    got = train(config(optimizer), tmp_path / "w")

    launches = json.loads((tmp_path / "w" / "manifest.json").read_text())
    assert [launch["step"] for launch in launches] == [0, CRASH_AT]
    assert [line["step"] for line in got.history] == [4, 8, NUM_STEPS]
    assert without_times(got.history) == without_times(wanted.history)
    assert jax.tree.structure(got.state) == jax.tree.structure(wanted.state)
    for (path, leaf), other in zip(jax.tree.leaves_with_path(got.state), jax.tree.leaves(wanted.state), strict=True):
        assert bits(leaf) == bits(other), jax.tree_util.keystr(path)
        assert leaf.sharding == other.sharding, jax.tree_util.keystr(path)
    assert_shared_out(got.state)
    assert (got.state.ema is not None) == ("ema" in BESIDE.get(optimizer, {}))


def assert_shared_out(state) -> None:
    """Every array that the four devices can divide is divided, and what the optimizer keeps lies as its parameters."""
    kept = [leaf for leaf in jax.tree.leaves(state.opt_state) if math.prod(leaf.shape) > 1]
    params = jax.tree.leaves(state.params)
    layouts = {param.shape: param.sharding for param in params}
    assert kept
    for leaf in [*params, *jax.tree.leaves(state.ema), *kept]:
        if any(dim % 4 == 0 for dim in leaf.shape):
            assert leaf.addressable_shards[0].data.size * 4 == leaf.size
    assert [leaf.shape for leaf in kept if leaf.sharding != layouts.get(leaf.shape, leaf.sharding)] == []
    assert sum(leaf.shape in layouts for leaf in kept) >= len(params)
