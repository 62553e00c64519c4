"""Which group a parameter belongs to, what is never decayed, and groups that cannot be meant."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

from jaxtrain.callbacks import Callback
from jaxtrain.config import ParamGroup
from jaxtrain.errors import EXIT_REFUSED, ConfigError
from jaxtrain.models.transformer import Transformer
from jaxtrain.param_groups import ParamGroups, decayed, path_of
from jaxtrain.preemption import Signals
from jaxtrain.train import train
from tests.classifier import At, make_config, on_one_device

PARAMS = {
    "encoder": {"dense": {"kernel": jnp.ones((3, 4)), "bias": jnp.ones(4)}, "norm": {"scale": jnp.ones(4)}},
    "head": {"kernel": jnp.ones((4, 2)), "bias": jnp.ones(2)},
}


def groups(**matches):
    """A group for each name, of a regular expression or of keys."""
    made = {name: ParamGroup(**(m if isinstance(m, dict) else {"match": m})) for name, m in matches.items()}
    return ParamGroups(made, decayed)


def by_path(tree):
    return {path_of(path): leaf for path, leaf in jax.tree.leaves_with_path(tree)}


def test_the_first_group_that_matches_has_a_parameter_and_the_rest_is_default():
    assert by_path(groups(biases="bias$", encoder="^encoder/").names(PARAMS)) == {
        "encoder/dense/bias": "biases",
        "encoder/dense/kernel": "encoder",
        "encoder/norm/scale": "encoder",
        "head/bias": "biases",
        "head/kernel": "default",
    }
    swapped = groups(encoder="^encoder/", biases="bias$").names(PARAMS)
    assert swapped["encoder"]["dense"]["bias"] == "encoder"


@pytest.mark.parametrize(
    ("matches", "key", "words"),
    [
        (
            {"head": "haed/kernel"},
            "head.match",
            r"haed/kernel: group 'head' matches no parameter.* Near are head/kernel",
        ),
        (
            {"all": "kernel", "head": "^head/kernel"},
            "head.match",
            "group 'head' has no parameter: all it matches are in all, before it",
        ),
        ({"x": {"match": "head", "freeze": True, "weight_decay": 0.1}}, "x.freeze", "frozen group has no rate"),
        ({"x": {"match": "head", "freeze": True, "learning_rate_factor": 2.0}}, "x.freeze", "frozen group has no rate"),
        ({"x": {"match": "bias|scale", "weight_decay": 0.1}}, "x.weight_decay", "never decayed.* mask of your own"),
        ({"x": {"match": ".", "freeze": True}}, "x.freeze", "nothing to train"),
        (
            {"x": {"match": "head", "freeze": True, "freeze_for": "3 steps"}},
            "x.freeze_for",
            "for the whole run, by freeze, or for a while",
        ),
    ],
)
def test_a_group_that_cannot_be_meant_is_refused(matches, key, words):
    with pytest.raises(ConfigError, match=words) as refusal:
        groups(**matches).check(PARAMS)
    assert [problem.key for problem in refusal.value.problems] == [f"param_groups.{key}"]


def test_groups_that_can_be_meant_are_not_refused():
    groups(a="head", b={"match": "bias|scale", "weight_decay": 0.0}, c={"match": "kernel", "freeze": True}).check(
        PARAMS
    )
    own_mask = ParamGroups({"x": ParamGroup(match="bias|scale", weight_decay=0.1)}, None)
    own_mask.check(PARAMS)


def test_a_run_whose_group_matches_nothing_is_refused_before_it_begins():
    with pytest.raises(ConfigError, match=r"--config.param_groups.head.match=haed: .*Dense_0/kernel") as refusal:
        on_one_device(make_config(param_groups={"head": {"match": "haed"}}))
    assert refusal.value.exit_code == EXIT_REFUSED


def test_the_table_tells_what_each_group_has_and_how_it_is_treated():
    table = groups(
        encoder={"match": "^encoder", "freeze": True},
        head={"match": "^head", "weight_decay": 0.5, "learning_rate_factor": 0.1},
    )
    rows = [line.split("  ") for line in table.describe(PARAMS).splitlines()]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert cells == [
        ["group", "parameters", "elements", "rate", "weight decay", "decayed elements"],
        ["encoder", "3", "20", "frozen", "-", "0"],
        ["head", "2", "10", "x 0.1", "0.5", "8"],
        ["default", "0", "0", "x 1", "the optimizer's", "0"],
    ]
    assert "decayed" not in ParamGroups({}, None).describe(PARAMS)


class Attention(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.LayerNorm()(nn.MultiHeadDotProductAttention(num_heads=2)(nn.Embed(5, 8)(x)))


class Convolutional(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(1, 4, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.linear = nnx.Linear(4, 2, rngs=rngs)


def test_matrices_and_embeddings_are_decayed_and_biases_and_scales_are_not_whatever_their_rank():
    tokens = jnp.zeros((1, 4), jnp.int32)
    scanned = Transformer(vocab_size=5, num_layers=2, embed=8, heads=2, max_seq=4, norm="layernorm", position="learned")
    models = [
        jax.eval_shape(scanned.init, jax.random.key(0), tokens)["params"],
        jax.eval_shape(Attention().init, jax.random.key(0), tokens)["params"],
        nnx.to_pure_dict(nnx.state(nnx.eval_shape(lambda: Convolutional(nnx.Rngs(0))), nnx.Param)),
    ]
    ranks = {}
    for params in models:
        shapes = by_path(params)
        for path, decays in by_path(decayed(params)).items():
            ranks.setdefault((path.rpartition("/")[2], decays), set()).add(len(shapes[path].shape))
    assert ranks == {
        ("kernel", True): {2, 3, 4},
        ("embedding", True): {2},
        ("scale", False): {1, 2},  # 2: of the scanned layers
        ("bias", False): {1, 2},  # 2: of the scanned layers, and [heads, head_dim] of an attention
    }


def test_names_that_end_in_bias_or_scale_count_and_vectors_of_any_name_do_not():
    params = {"a": {"in_bias": jnp.ones((2, 2)), "layer_scale": jnp.ones((2, 2)), "gain": jnp.ones(2)}}
    params["a"] |= {"rescaled": jnp.ones((2, 2)), "unbiased": jnp.ones((2, 2))}
    assert by_path(decayed(params)) == {
        "a/gain": False,
        "a/in_bias": False,
        "a/layer_scale": False,
        "a/rescaled": True,
        "a/unbiased": True,
    }


def frozen_for_a_while(freeze_for="5 steps", **changes):
    config = make_config(**changes)
    config.optimizer.type = "optax:adamw"
    config.param_groups.first = {"match": "^Dense_0/", "freeze_for": freeze_for}
    config.checkpoint = {"every": "1 steps", "keep_last": 20}
    return config


def test_a_group_that_is_frozen_for_a_while_keeps_every_bit_and_is_trained_from_then_on(tmp_path):
    kept = {}

    class Keep(Callback):
        def on_start(self, run):
            self.on_step(run, 0)

        def on_step(self, run, step):
            kept[step] = by_path(jax.tree.map(np.asarray, run.state.params))

    train(frozen_for_a_while(callbacks={"keep": {"type": Keep()}}), tmp_path / "w")
    for name, first in kept[0].items():
        changed = [step for step in range(1, 13) if not np.array_equal(kept[step][name], kept[step - 1][name])]
        assert changed == list(range(6 if name.startswith("Dense_0/") else 1, 13)), name
        assert first.dtype == np.float32


@pytest.mark.parametrize("stopped_at", [3, 5, 6])
def test_a_run_that_is_resumed_beside_the_thaw_ends_like_one_that_was_not(stopped_at, tmp_path):
    whole = train(frozen_for_a_while(), tmp_path / "whole")
    signals = Signals()
    stop = At(stopped_at, lambda run: setattr(signals, "requested", "SIGTERM"))
    begun = train(frozen_for_a_while(callbacks={"stop": {"type": stop}}), tmp_path / "w", signals=signals)
    assert (begun.status, begun.step) == ("preempted", stopped_at)
    resumed = train(frozen_for_a_while(), tmp_path / "w")
    for a, b in zip(jax.tree.leaves(resumed.state.params), jax.tree.leaves(whole.state.params), strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(jax.tree.leaves(resumed.state.opt_state), jax.tree.leaves(whole.state.opt_state), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("freeze_for", ["12 steps", "3 epochs", "400 examples"])
def test_frozen_for_the_whole_run_is_refused(freeze_for):
    with pytest.raises(ConfigError) as raised:
        on_one_device(frozen_for_a_while(freeze_for))
    (problem,) = raised.value.problems
    assert problem.key == "param_groups.first.freeze_for"
    assert "the whole run of 12" in problem.allowed


def test_the_table_says_until_when_a_group_is_frozen():
    experiment = on_one_device(frozen_for_a_while("2 epochs", duration="20 steps"))
    table = experiment.optimizer.groups.describe(experiment.abstract_state.params)
    assert "x 1 after step 13" in next(line for line in table.splitlines() if line.startswith("first"))
