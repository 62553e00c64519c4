"""What a mesh must not change, the numbers, and what it must: bytes on each device, and what devices exchange."""

import dataclasses
import functools
import math
import re

import jax
import numpy as np
import pytest

from jaxtrain.generate import generate
from jaxtrain.models.logical import laid_out
from jaxtrain.sharding import table
from jaxtrain.step import make_eval_step
from tests.meshes import BATCH, MESHES, MODELS, STEPS, experiment_of, train

ENGINES = {"llama": "multisteps", "gpt2": "fused"}


@functools.cache
def assembled(mesh, model):
    return experiment_of(MESHES[mesh], MODELS[model], accumulation={"engine": ENGINES[model]})


@functools.cache
def trained(mesh, model):
    return train(assembled(mesh, model))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("mesh", [name for name in MESHES if name != "one device"])
def test_twenty_steps_give_the_same_losses_and_parameters_from_the_same_examples(mesh, model):
    losses, positions, state = trained(mesh, model)
    expected_losses, expected_positions, expected = trained("one device", model)
    np.testing.assert_array_equal(positions, expected_positions)
    assert len(np.unique(positions)) == 4 * BATCH
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    assert len(set(losses)) == STEPS
    for (path, a), b in zip(jax.tree.leaves_with_path(state.params), jax.tree.leaves(expected.params), strict=True):
        a, b, name = np.asarray(a), np.asarray(b), jax.tree_util.keystr(path, simple=True, separator="/")
        if name.endswith("key/bias"):  # moves all scores of a query alike: its gradient is rounding of zero
            assert np.max(np.abs([a, b])) <= 1e-6
        else:
            assert np.linalg.norm(a - b) <= 1e-5 * np.linalg.norm(b), name


@pytest.mark.parametrize("mesh", ["tensor=4,fsdp=2", "sequence=2,tensor=2,data=2"])
def test_a_run_begins_evaluates_and_writes_text_as_on_one_device(mesh):
    split, whole = assembled(mesh, "llama"), assembled("one device", "llama")
    params, expected = split.init_state().params, whole.init_state().params
    jax.tree.map(np.testing.assert_array_equal, params, expected)
    loader = whole.loader(0)
    batch = next(loader).arrays
    loader.close()
    loss, expected_loss = (
        jax.jit(step)(params, {}, batch)["loss"].compute()
        for step, params in ((split.eval_step(), params), (make_eval_step(whole.task), expected))
    )
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-6)
    prompts = {"prompts": [[1, 2, 3], [4]], "max_new_tokens": 4, "temperature": 0}
    with laid_out(split.layout):
        texts = generate(split.task, params, **prompts)
    assert texts == generate(whole.task, expected, **prompts)


# Bytes


@pytest.mark.parametrize("mesh", ["fsdp=8", "tensor=4,fsdp=2", "sequence=2,tensor=2,data=2"])
def test_parameters_and_moments_take_their_share_of_each_device(mesh):
    experiment, sizes = assembled(mesh, "gpt2"), MESHES[mesh]
    tensor, fsdp = sizes.get("tensor", 1), sizes.get("fsdp", 1)
    over_tensor = re.compile("embedding/embedding|lm_head|query|key|value|out/kernel|up|down/kernel")
    by_path = {}
    for path, shape, _, _, num_bytes in table(experiment.abstract_state.params):
        of_tensor = tensor if over_tensor.search(path) and not path.startswith("positions") else 1
        of_fsdp = fsdp if len(shape) > 1 or of_tensor == 1 else 1  # a vector has one dim to split
        assert num_bytes == math.prod(shape) * 4 // (of_tensor * of_fsdp), path
        by_path[path] = num_bytes
    moments = table(experiment.abstract_state.opt_state)
    assert sum(num_bytes for _, shape, *_, num_bytes in moments if shape) == sum(by_path.values())


def follows_inputs(jaxpr):
    """Say of each output whether it depends on an input."""
    known = {id(variable) for variable in jaxpr.invars}
    for equation in jaxpr.eqns:
        if any(id(variable) in known for variable in equation.invars):
            known |= {id(variable) for variable in equation.outvars}
    return [id(variable) in known for variable in jaxpr.outvars]


def saved_bytes(mesh):
    """Bytes on each device of what the backward pass finds saved, but for parameters and constants."""
    experiment = experiment_of(mesh)
    rows = experiment.place.sharding.update(spec=("data",))
    batch = {
        name: jax.ShapeDtypeStruct((BATCH, *x.shape[2:]), x.dtype, sharding=rows)
        for name, x in experiment.abstract_batch.items()
    }

    @experiment.layout.traced
    def saved(params, batch, key):
        return jax.vjp(lambda params: experiment.task.loss(params, {}, batch, key, True).loss.total, params)[1]

    params = experiment.abstract_state.params
    traced = jax.jit(saved).trace(params, batch, jax.random.key(0))
    shapes = {tuple(sorted(x.shape)) for x in jax.tree.leaves(params)}
    return sum(
        math.prod(sharding.shard_shape(aval.shape)) * aval.dtype.itemsize
        for aval, sharding, varies in zip(
            traced.jaxpr.out_avals,
            jax.tree.leaves(traced.lower().compile().output_shardings),
            follows_inputs(traced.jaxpr.jaxpr),
            strict=True,
        )
        if varies and tuple(sorted(aval.shape)) not in shapes
    )


@pytest.mark.parametrize("axis", ["data", "sequence"])
def test_saved_activations_fall_by_the_size_of_the_axis(axis):
    whole, half, quarter = (saved_bytes({axis: size}) for size in (1, 2, 4))
    assert quarter == pytest.approx(half / 2, rel=0.1)
    if axis == "sequence":  # attention then keeps no scores
        assert half <= 1.1 * whole / 2
    else:
        assert half == pytest.approx(whole / 2, rel=0.1)


# Communication


def gathered(experiment):
    """The shapes that all-gathers of the train step give, without dims of 1."""
    text = experiment.compile_train_step().as_text()
    shapes = re.findall(r"\w+\[([\d,]*)\][^=]* all-gather(?:-start)?\(", text)
    return {tuple(int(size) for size in shape.split(",") if size not in ("", "1")) for shape in shapes}


def split_weights(experiment):
    """The full shapes of kernels and tables that `tensor` splits, those of one layer where layers are stacked."""
    rows = table(experiment.abstract_state.params)
    shapes = {shape[path.startswith("layers/") :] for path, shape, _, axes, _ in rows if "tensor" in axes}
    return {shape for shape in shapes if len(shape) > 1}


@pytest.mark.parametrize("model", MODELS)
def test_no_weight_is_gathered_whole_over_tensor(model):
    split = assembled("tensor=4,fsdp=2", model)
    weights = split_weights(split)
    assert len(weights) >= 4
    assert gathered(split)
    assert not gathered(split) & weights
    assert len(gathered(assembled("fsdp=8", model)) & weights) >= 4  # which does gather them


def test_the_forward_pass_of_a_layer_has_two_all_reduces_and_the_loss_gathers_no_logits():
    experiment = experiment_of({"tensor": 4}, MODELS["gpt2"])
    params, batch = experiment.abstract_state.params, experiment.abstract_batch
    batch = {name: jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for name, x in batch.items()}

    def forward(params, batch):
        return experiment.task.loss(params, {}, batch, jax.random.key(0), True).loss.total

    text = jax.jit(experiment.layout.traced(forward)).lower(params, batch).compile().as_text()
    reduced = [line for line in text.splitlines() if re.search(r" all-reduce(-start)?\(", line)]
    kinds = [re.search(r"embedding|attention/out|mlp/down|reduce_max|reduce_sum", line)[0] for line in reduced]
    assert sorted(kinds) == ["attention/out", "embedding", "mlp/down", "reduce_max", "reduce_sum"]
    assert not re.search(r" (all-gather|all-to-all|collective-permute)", text)


@pytest.mark.parametrize("mesh", ["tensor=4,fsdp=2", "sequence=2,tensor=2,data=2"])
def test_reducing_once_gives_the_same_losses_beside_tensor_and_sequence(mesh):
    """Without dropout, whose masks then belong to shards."""
    task = dataclasses.replace(MODELS["llama"], model=MODELS["llama"].model.clone(dropout=0.0))
    (losses, _, _), (expected, _, _) = (
        train(experiment_of(MESHES[mesh], task, accumulation={"reduce": reduce}), 5) for reduce in ("once", "each")
    )
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
