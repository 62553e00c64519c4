"""Statistics: their numbers, in which lines they are, and that nothing else changes for them."""

import jax
import numpy as np
import pytest

from jaxtrain.callbacks.statistics import make_statistics, summarize
from jaxtrain.errors import ConfigError
from jaxtrain.preemption import Signals
from jaxtrain.train import train
from tests.classifier import At, make_config, on_one_device, rows, without_times

RATE, CLIP = 0.1, 0.01
STATISTICS = {"type": "jaxtrain.callbacks.statistics:Statistics", "every": "4 steps"}


def config_of(duration="4 steps", **changes):
    """SGD on rows in their order, in two microbatches, with clipping that always bites."""
    config = make_config(duration=duration, clip_norm=CLIP, batch_size=16, log={"every": "2 steps"}, **changes)
    config.data = {"type": rows(64), "shuffle": False}
    config.optimizer = {"type": "optax:sgd", "learning_rate": RATE}
    config.accumulation.microbatches = 2
    return config


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return train(config_of(callbacks={"statistics": STATISTICS}), tmp_path_factory.mktemp("with") / "w")


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    return train(config_of(), tmp_path_factory.mktemp("without") / "w")


def mean_loss(params, image, label):
    hidden = jax.nn.gelu(image @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"])
    logits = hidden @ params["Dense_1"]["kernel"] + params["Dense_1"]["bias"]
    return -jax.nn.log_softmax(logits)[np.arange(len(label)), label].mean()


def flat(tree, group):
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree[group])])


def test_the_numbers_are_those_of_the_step_of_their_line(result, tmp_path):
    params = jax.device_get(train(config_of("3 steps"), tmp_path / "w").state.params)  # before step 4
    arrays = rows(64).arrays
    grads = jax.grad(mean_loss)(params, arrays["image"][48:], arrays["label"][48:])
    norm = np.sqrt(sum((flat(grads, group) ** 2).sum() for group in grads))
    assert norm > CLIP
    updates = jax.tree.map(lambda x: -RATE * CLIP / norm * x, grads)
    line = result.history[-1]
    assert line["grad_norm"] != pytest.approx(norm, rel=1e-3)  # that is the mean over steps 3 and 4
    for kind, tree in (("grads", grads), ("updates", updates), ("params", params)):
        for group in ("Dense_0", "Dense_1"):
            values = flat(tree, group)
            expected = {
                "norm": np.linalg.norm(values),
                "mean": values.mean(),
                "std": values.std(),
                "max_abs": np.abs(values).max(),
            }
            found = {name: line[f"{kind}/{group}/{name}"] for name in expected}
            assert found == pytest.approx(expected, rel=1e-5, abs=1e-8), (kind, group)


def test_only_due_lines_have_them_and_nothing_else_differs(result, bare):
    assert [sum("/" in name for name in line) for line in result.history] == [0, 3 * 2 * 4]
    lines = [{name: value for name, value in line.items() if "/" not in name} for line in result.history]
    assert [without_times(line) for line in lines] == [without_times(line) for line in bare.history]
    for ours, theirs in zip(jax.tree.leaves(result.state.params), jax.tree.leaves(bare.state.params), strict=True):
        assert np.asarray(ours).tobytes() == np.asarray(theirs).tobytes()


def test_a_run_killed_inside_an_interval_has_the_same_lines(result, tmp_path):
    signals = Signals()
    stop = {"type": At(3, lambda run: setattr(signals, "requested", "SIGTERM"))}
    callbacks = {"statistics": STATISTICS, "stop": stop}
    assert train(config_of(callbacks=callbacks), tmp_path / "w", signals=signals).step == 3
    resumed = train(config_of(callbacks={"statistics": STATISTICS}), tmp_path / "w")
    assert [without_times(line) for line in resumed.history] == [without_times(line) for line in result.history]


@pytest.mark.parametrize(
    ("statistics", "log", "told"),
    [
        ({"every": "3 steps"}, "2 steps", "every='3 steps' must be a multiple of log.every='2 steps'"),
        ({"every": ""}, "1 minute", "which must be steps or examples"),
        ({"every": "", "kinds": ("grads", "moments")}, "2 steps", "must be some of grads, updates, params"),
    ],
)
def test_what_cannot_be_in_a_line_is_refused_before_the_run_begins(tmp_path, statistics, log, told):
    config = config_of(callbacks={"statistics": {**STATISTICS, **statistics}})
    config.log.every = log
    with pytest.raises(ConfigError, match=told):
        train(config, tmp_path / "w")
    assert not (tmp_path / "w" / "config.json").exists()


def test_parameters_alone_cost_no_gradient():
    experiment = on_one_device(config_of())

    def multiplies(*kinds):
        function = jax.jit(make_statistics(experiment, kinds), keep_unused=True)
        return "dot(" in function.lower(experiment.abstract_state, experiment.abstract_batch).compile().as_text()

    assert multiplies("grads")
    assert not multiplies("params")


def test_a_group_is_the_first_part_of_a_path_and_empty_leaves_do_not_count():
    tree = {"a": {"b": np.array([3.0]), "c": {"d": np.array([-5.0, 4.0])}}, "e": np.zeros((0, 2), np.float32)}
    numbers = {name: float(value) for name, value in summarize("params", tree).items()}
    expected = {"norm": 50**0.5, "mean": 2 / 3, "std": np.std([3, -5, 4]), "max_abs": 5}
    assert numbers == pytest.approx({f"params/a/{name}": value for name, value in expected.items()})
    assert summarize("grads", np.array([2.0], np.float32))["grads/all/norm"] == 2
