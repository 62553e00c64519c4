"""Weights of other runs: which leaves are taken, under which names, with which bits, and what is refused."""

import shutil

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.flax import save_file

from jaxtrain import init_from
from jaxtrain.assembly import assemble
from jaxtrain.check import checked
from jaxtrain.checkpoint import Checkpoints
from jaxtrain.checkpoint.leaves import named
from jaxtrain.errors import EXIT_REFUSED, CheckpointError, ConfigError
from jaxtrain.models.mlp import MLP
from jaxtrain.tasks.classification import Classification
from jaxtrain.train import train
from tests.classifier import make_config, rows
from tests.tasks.foreign_models import LinenNet


class NormNet(nn.Module):
    """Batch statistics between two layers."""

    @nn.compact
    def __call__(self, x, train=False):
        x = nn.BatchNorm(use_running_average=not train)(nn.Dense(8)(x))
        return nn.Dense(3)(nn.relu(x))


class NnxTwin(nnx.Module):
    """The network of `MLP((8,), 3)` with other names."""

    def __init__(self, rngs):
        self.layers = nnx.List([nnx.Linear(4, 8, rngs=rngs), nnx.Linear(8, 3, rngs=rngs)])

    def __call__(self, x):
        return self.layers[1](nnx.gelu(self.layers[0](x)))


TO_TWIN = {"layers": {"match": r"^Dense_(\d)/", "replace": r"layers/\1/"}}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A finished run of two steps, and its last state."""
    result = train(make_config(seed=1, duration="2 steps"), tmp_path_factory.mktemp("source") / "run")
    return result.workdir, jax.device_get(result.state.params)


def assembled(path, model=None, one_device=True, **changes):
    """The parts of a run of seed 0 with weights of `path`; `changes` of init_from, or of the config if it is one."""
    keys = {"rename", "keep", "drop", "cast"}
    config = make_config(**{name: value for name, value in changes.items() if name not in keys})
    config.init_from = {"path": str(path)} | {name: value for name, value in changes.items() if name in keys}
    if model is not None:
        config.task.type = Classification(model)
    return assemble(checked(config), devices=jax.devices()[:1] if one_device else None)


def state_of(experiment):
    return experiment.init_state(init_from.load(experiment.config.init_from, experiment.abstract_state))


def bits(tree):
    return {name: np.asarray(leaf).tobytes() for name, leaf in named(tree).items()}


def refusal(experiment, kind=ConfigError):
    with pytest.raises(kind) as caught:
        init_from.load(experiment.config.init_from, experiment.abstract_state)
    assert caught.value.exit_code == EXIT_REFUSED
    return str(caught.value)


def test_all_weights_are_those_of_the_newest_checkpoint_and_all_else_is_new(source):
    workdir, params = source
    state, new = state_of(assembled(workdir)), assembled("").init_state()
    assert bits(state.params) == bits(params) != bits(new.params)
    for field in ("step", "opt_state", "model_state", "counters", "interval"):
        assert bits(getattr(state, field)) == bits(getattr(new, field))
    assert bits(state_of(assembled(workdir / "checkpoints" / "2")).params) == bits(params)


def test_optimizer_state_that_begins_with_the_parameters_begins_with_these(source):
    workdir, params = source
    experiment = assembled(workdir, optimizer={"type": "optax.contrib:schedule_free_sgd"})
    z = next(leaf for name, leaf in named(state_of(experiment).opt_state).items() if name.endswith("z/Dense_0/kernel"))
    np.testing.assert_array_equal(z, params["Dense_0"]["kernel"])


def test_a_run_starts_with_the_loss_that_the_source_has_on_its_first_batch(source, tmp_path):
    workdir, params = source
    config = make_config(duration="1 step", init_from={"path": str(workdir)}, log={"every": "1 step"})
    config.data = {"type": rows(), "shuffle": False}
    line = train(config, tmp_path / "w").history[0]
    image, label = (rows().arrays[name][:8] for name in ("image", "label"))
    hidden = jax.nn.gelu(image @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"])
    logits = np.asarray(hidden @ params["Dense_1"]["kernel"] + params["Dense_1"]["bias"], np.float64)
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(8), label]
    assert line["loss"] == pytest.approx(losses.mean(), rel=1e-6)


def test_a_model_of_other_names_takes_renamed_leaves_and_computes_the_same(source):
    workdir, _ = source
    twin, own = (assembled(workdir, model, rename=rules) for model, rules in ((NnxTwin, TO_TWIN), (None, {})))
    assert sorted(named(twin.abstract_state.params)) == [
        *("layers/0/bias", "layers/0/kernel", "layers/1/bias", "layers/1/kernel")
    ]
    batch = rows().arrays
    logits = [e.task.predict(state_of(e).params, {}, batch) for e in (twin, own)]
    np.testing.assert_allclose(*logits, rtol=1e-6, atol=1e-6)
    assert "layers/0/kernel: float32[4, 8]" in refusal(assembled(workdir, NnxTwin))


def test_renames_apply_in_order_each_to_what_the_ones_before_made(source):
    workdir, params = source
    one, two = {"match": "^Dense_", "replace": "x"}, {"match": r"^x(\d)/", "replace": r"layers/\1/"}
    state = state_of(assembled(workdir, NnxTwin, rename={"one": one, "two": two}))
    assert bits(state.params["layers"]["1"]) == bits(params["Dense_1"])
    assert "rename.two.match=^x(" in refusal(assembled(workdir, NnxTwin, rename={"two": two, "one": one}))


def test_a_new_head_keeps_its_initial_values(source):
    workdir, params = source
    told = refusal(assembled(workdir, MLP((8,), 5)))
    assert "  mismatched:\n    Dense_1/bias: saved float32[3], wanted float32[5]\n" in told
    assert "    Dense_1/kernel: saved float32[8, 3], wanted float32[8, 5]\n" in told
    assert "Dense_0" not in told
    state, new = state_of(assembled(workdir, MLP((8,), 5), keep="^Dense_1/")), assembled("", MLP((8,), 5)).init_state()
    assert bits(state.params["Dense_0"]) == bits(params["Dense_0"]) != bits(new.params["Dense_0"])
    assert bits(state.params["Dense_1"]) == bits(new.params["Dense_1"])


def test_missing_and_unexpected_leaves_are_told_and_can_be_allowed(source):
    workdir, params = source
    told = refusal(assembled(workdir, MLP((8, 3), 3)))
    assert "  missing, the model has them and the source does not:\n    Dense_2/bias: float32[3]\n" in told
    assert "unexpected" not in told
    told = refusal(assembled(workdir, MLP((), 3), keep="kernel"))
    assert "  unexpected, the source has them and the model does not:\n    Dense_1/bias: float32[3]\n" in told
    assert "mismatched:\n    Dense_0/bias: saved float32[8], wanted float32[3]" in told
    rename = {"head": {"match": "Dense_1", "replace": "Dense_0"}}
    state = state_of(assembled(workdir, MLP((), 3), rename=rename, drop="^Dense_0/|kernel", keep="kernel"))
    assert bits(state.params)["Dense_0/bias"] == bits(params)["Dense_1/bias"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"keep": "Dens_1"}, "--config.init_from.keep=Dens_1: nothing matches; there are Dense_0/bias,"),
        ({"drop": "Dens_1"}, "--config.init_from.drop=Dens_1: nothing matches; there are Dense_0/bias,"),
        ({"rename": {"a": {"match": "x", "replace": ""}}}, "--config.init_from.rename.a.match=x: nothing matches"),
        ({"rename": {"a": {"match": "D", "replace": r"\1"}}}, "--config.init_from.rename.a.replace=\\1: invalid group"),
        (
            {"rename": {"a": {"match": "_[01]", "replace": ""}}},
            "Dense_0/bias and Dense_1/bias would both be Dense/bias",
        ),
    ],
)
def test_a_rule_that_does_nothing_or_too_much_is_refused(source, changes, told):
    assert told in refusal(assembled(source[0], **changes))


@pytest.mark.parametrize("place", ["nothing", "", "checkpoints/7", "model.safetensors"])
def test_a_path_without_weights_is_refused(tmp_path, place):
    (tmp_path / "checkpoints").mkdir()
    told = refusal(assembled(tmp_path / place))
    assert "there is no checkpoint and no .safetensors file. Name a workdir" in told


def test_a_damaged_checkpoint_is_refused_and_neither_run_is_touched(source, tmp_path):
    workdir = shutil.copytree(source[0], tmp_path / "source")
    shutil.copytree(workdir / "checkpoints" / "2", workdir / "checkpoints" / "1")
    file = max((workdir / "checkpoints" / "2").rglob("*"), key=lambda path: path.is_file() and path.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    before = {path: path.read_bytes() for path in workdir.rglob("*") if path.is_file()}
    with pytest.raises(CheckpointError, match=r"checkpoints/2 is damaged: .* Others there are of steps 1\."):
        train(make_config(init_from={"path": str(workdir)}), tmp_path / "w")
    assert before == {path: path.read_bytes() for path in workdir.rglob("*") if path.is_file()}
    assert not {"config.json", "metrics.jsonl", "manifest.json"} & {path.name for path in (tmp_path / "w").iterdir()}


def test_a_resumed_run_ignores_it_and_says_so(source, tmp_path, caplog):
    first = train(make_config(duration="2 steps", init_from={"path": str(source[0])}), tmp_path / "w")
    assert "weights: 4 leaves of 4 from" in caplog.text
    longer = train(make_config(duration="3 steps", init_from={"path": "gone"}), tmp_path / "w")
    assert (first.step, longer.step) == (2, 3)
    assert "init_from is not used: this run goes on from its own checkpoint of step 2" in caplog.text
    assert "changed since the last launch: init_from.path" in caplog.text


def test_fresh_sets_nothing_aside_for_weights_that_are_refused(source, tmp_path):
    workdir = shutil.copytree(source[0], tmp_path / "w")
    for path, told in ((tmp_path / "gone", "there is no checkpoint"), (workdir, "which --fresh sets aside")):
        with pytest.raises(ConfigError, match=told):
            train(make_config(init_from={"path": str(path)}), workdir, fresh=True)
    assert (workdir / "checkpoints" / "2").exists()
    assert not (workdir / "set_aside").exists()


def test_weights_get_the_shardings_of_this_run(source, tmp_path):
    workdir, params = source
    whole = {f"{layer}/{name}": jnp.asarray(leaf) for layer, leaves in params.items() for name, leaf in leaves.items()}
    save_file(whole, tmp_path / "model.safetensors")
    for path in (workdir, tmp_path / "model.safetensors"):
        experiment = assembled(path, one_device=False, mesh={"data": 1, "fsdp": 8}, sharding={"min_size": 0})
        loaded, _ = init_from.load(experiment.config.init_from, experiment.abstract_state)
        kernel = loaded["Dense_0"]["kernel"]
        assert kernel.addressable_shards[0].data.shape == (4, 1)
        state = experiment.init_state((loaded, {}))
        assert bits(state.params) == bits(params)
        assert jax.tree.map(lambda x: x.sharding, state) == experiment._shardings


def test_floats_are_converted_where_no_bit_is_lost_and_else_only_when_asked(source, tmp_path, caplog):
    caplog.set_level("INFO")
    workdir, params = source
    half = jax.tree.map(lambda x: jnp.asarray(x, jnp.bfloat16), params)
    save_file({f"params/{name}": leaf for name, leaf in named(half).items()}, tmp_path / "half.safetensors")
    state = state_of(assembled(tmp_path / "half.safetensors"))
    assert bits(state.params) == bits(jax.tree.map(lambda x: x.astype(jnp.float32), half))
    assert "4 converted to the dtypes of this run: Dense_0/bias, " in caplog.text
    told = refusal(assembled(workdir, precision={"params": "bfloat16"}))
    assert "Dense_0/kernel: saved float32[4, 8], wanted bfloat16[4, 8]" in told
    state = state_of(assembled(workdir, precision={"params": "bfloat16"}, cast=True))
    assert bits(state.params) == bits(half)


def test_batch_statistics_come_along(tmp_path):
    source = assembled("", NormNet(), seed=3).init_state()
    given = jax.tree.map(lambda x: x + 1.5, source.model_state)
    save(tmp_path, {"params": source.params, "model_state": given})
    state = state_of(assembled(tmp_path / "checkpoints" / "5", NormNet()))
    assert bits((state.params, state.model_state)) == bits((source.params, given))
    state = state_of(assembled(tmp_path, NormNet(), keep="^model_state/"))
    assert bits(state.model_state) == bits(source.model_state)
    told = refusal(assembled(tmp_path, LinenNet(width=8)))
    assert "model_state/usage/examples: int32[]" in told


def test_the_moving_average_is_taken_where_there_is_one(tmp_path, caplog):
    caplog.set_level("INFO")
    params = assembled("", seed=3).init_state().params
    ema = jax.tree.map(lambda x: x + 1.5, params)
    save(tmp_path, {"params": params, "ema": ema, "model_state": {}, "opt_state": params})
    assert bits(state_of(assembled(tmp_path)).params) == bits(ema)
    assert "checkpoints/5, the moving average (ema) of the parameters" in caplog.text


def save(workdir, state):
    checkpoints = Checkpoints(workdir / "checkpoints", keep_last=1)
    checkpoints.save(5, state, {})
    checkpoints.close()


def test_a_damaged_safetensors_file_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"Dense_0/bias": jnp.ones(8)}, path)
    path.write_bytes(path.read_bytes()[:-4])
    assert "model.safetensors is damaged or no safetensors file" in refusal(assembled(path), CheckpointError)
