"""The transformer: properties that hold for every choice of its parts, on tiny sizes."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain.models.losses import cross_entropy
from jaxtrain.models.transformer import NORMS, REMAT_POLICIES, Transformer
from tests.models.jaxprs import count, equations

BATCH, SEQ, VOCAB, EMBED, LAYERS = 8, 8, 32, 16, 2
LLAMA = {"norm": "rmsnorm", "position": "rotary", "activation": "swiglu", "tie_embeddings": False, "kv_heads": 2}
GPT2 = {"norm": "layernorm", "position": "learned", "activation": "gelu", "tie_embeddings": True}
TOKENS = np.random.default_rng(0).integers(0, VOCAB, (BATCH, SEQ + 1)).astype(np.int32)
INPUTS, TARGETS = TOKENS[:, :-1], TOKENS[:, 1:]


def make(**options):
    return Transformer(VOCAB, LAYERS, EMBED, heads=4, max_seq=SEQ, **options)


# Compiling is most of the time of these tests, and running the programs the least.
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


@functools.cache
def _params(options):
    """Parameters of a usual size, without the time that compiling their initial values takes."""
    shapes = jax.eval_shape(make(**dict(options)).init, jax.random.key(0), INPUTS)["params"]
    rng = np.random.default_rng(0)

    def draw(path, leaf):
        values = rng.normal(size=leaf.shape).astype(np.float32)
        return 1 + 0.1 * values if path[-1].key in ("scale", "bias") else values * EMBED**-0.5

    return jax.tree_util.tree_map_with_path(draw, shapes)


def params_of(**options):
    return _params(tuple(sorted(options.items())))


def loss_of(model, **apply):
    return lambda params: jnp.mean(cross_entropy(model.apply({"params": params}, INPUTS, **apply), TARGETS))


def value_and_grads(model, params):
    return jit(jax.value_and_grad(loss_of(model)))(params)


@functools.cache
def llama_value_and_grads():
    return value_and_grads(make(**LLAMA), params_of(**LLAMA))


def assert_close(actual, expected, tolerance=1e-5):
    def compare(path, a, b):
        distance = np.linalg.norm(np.asarray(a) - np.asarray(b))
        assert distance <= tolerance * np.linalg.norm(b), (jax.tree_util.keystr(path), distance)

    jax.tree_util.tree_map_with_path(compare, actual, expected)


def unstack(params):
    """Parameters of scanned layers, as those of layers that stand for themselves."""
    rest = {name: value for name, value in params.items() if name != "layers"}
    layers = {f"layers_{i}": jax.tree.map(lambda x, i=i: x[i], params["layers"]) for i in range(LAYERS)}
    return {**rest, **layers}


# What a position sees


@pytest.mark.parametrize("options", [LLAMA, GPT2], ids=["llama", "gpt2"])
def test_logits_of_a_position_change_with_its_token_and_not_with_later_ones(options):
    apply = jit(make(**options).apply)
    variables = {"params": params_of(**options)}
    changed = np.array(INPUTS)
    changed[:, 5] = (changed[:, 5] + 1) % VOCAB
    before, after = apply(variables, INPUTS), apply(variables, changed)
    np.testing.assert_array_equal(before[:, :5], after[:, :5])
    assert np.all(np.abs(before - after)[:, 5:].max((0, 2)) > 1e-6)


def test_no_gradient_of_a_loss_reaches_later_positions():
    params = params_of(**GPT2)

    def loss_at(params, position):
        logits = make(**GPT2).apply({"params": params}, INPUTS)
        return jnp.sum(cross_entropy(logits, TARGETS)[:, position])

    gradient = jit(jax.grad(loss_at), static_argnums=1)(params, 3)["positions"]["embedding"]
    np.testing.assert_array_equal(gradient[4:], 0)
    assert np.all(np.abs(gradient[:4]).max(-1) > 0)


def test_a_sequence_may_be_shorter_than_max_seq_and_not_longer():
    variables = {"params": params_of(**GPT2)}
    apply = jit(make(**GPT2).apply)
    np.testing.assert_allclose(apply(variables, INPUTS[:, :5]), apply(variables, INPUTS)[:, :5], rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="9 tokens is longer than the Transformer's max_seq=8"):
        jax.eval_shape(make(**GPT2).apply, variables, TOKENS)


# One program, written in different ways


@pytest.mark.parametrize("remat", ["none", "full"])
def test_scanned_layers_equal_unscanned_ones_with_the_same_parameters(remat):
    loss, gradients = llama_value_and_grads()
    unscanned = value_and_grads(make(**LLAMA, scan_layers=False, remat=remat), unstack(params_of(**LLAMA)))
    assert_close((loss, unstack(gradients)), unscanned)


@pytest.mark.parametrize(("remat", "unroll"), list(zip(REMAT_POLICIES, [1, 1, LAYERS], strict=True)))
def test_every_remat_policy_and_any_unroll_give_the_same_loss_and_gradients(remat, unroll):
    model = make(**LLAMA, remat=remat, unroll=unroll)
    assert_close(value_and_grads(model, params_of(**LLAMA)), llama_value_and_grads(), 1e-6)


def test_every_remat_policy_computes_again_what_it_says():
    params = params_of(**LLAMA)

    def products(remat):
        """Matrix products in the forward and backward pass of the loop's body, and of the head."""
        return count("dot_general", jax.grad(loss_of(make(**LLAMA, remat=remat))), params)

    # Forward, a layer has 7 products with kernels and 2 of attention. The backward pass needs no output of "down".
    attention, projections, mlp, out = 2, 3, 2, 1
    assert products("full") - products("none") == attention + projections + mlp + out
    assert products("attention") - products("none") == attention + mlp + out
    assert products("matmuls") - products("none") == attention


def test_remat_policies_are_ordered_by_what_a_scan_keeps():
    def kept(remat):
        gradient = jax.grad(loss_of(make(**LLAMA, remat=remat)))
        forward = next(e for e in equations(gradient, params_of(**LLAMA)) if e.primitive.name == "scan")
        return sum(out.aval.size for out in forward.outvars if out.aval.shape[:1] == (LAYERS,))

    sizes = {remat: kept(remat) for remat in ("full", "attention", "matmuls", "none")}
    assert sizes["full"] < sizes["attention"] < sizes["matmuls"] < sizes["none"]
    assert sizes["full"] == LAYERS * BATCH * SEQ * EMBED  # the input of each layer


def test_features_and_head_make_the_logits():
    model, variables = make(**LLAMA), {"params": params_of(**LLAMA)}

    @jax.jit
    def in_two_steps(variables):
        features = model.apply(variables, INPUTS, method="features")
        assert features.shape == (BATCH, SEQ, EMBED)
        return model.apply(variables, features, method="head")

    np.testing.assert_allclose(in_two_steps(variables), jit(model.apply)(variables, INPUTS), rtol=1e-5, atol=1e-6)


def test_sharded_over_eight_devices_it_gives_the_same():
    if len(jax.devices()) < 8:
        pytest.fail("This test needs 8 simulated devices, see tests/conftest.py.")
    model, params = make(**LLAMA), params_of(**LLAMA)
    mesh = jax.make_mesh((2, 4), ("data", "fsdp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    spec = jax.sharding.PartitionSpec

    def place(x):
        """Over fsdp along the largest dim that it divides."""
        dim = max(range(x.ndim), key=lambda d: (x.shape[d] % 4 == 0, x.shape[d]))
        axes = [None] * x.ndim
        if x.shape[dim] % 4 == 0:
            axes[dim] = "fsdp"
        return jax.device_put(x, jax.sharding.NamedSharding(mesh, spec(*axes)))

    def total(params, inputs):
        return jnp.mean(cross_entropy(model.apply({"params": params}, inputs), TARGETS))

    inputs = jax.device_put(INPUTS, jax.sharding.NamedSharding(mesh, spec(("data", "fsdp"))))
    sharded = jit(jax.value_and_grad(total))(jax.tree.map(place, params), inputs)
    assert_close(sharded, llama_value_and_grads())


# Parameters


@pytest.mark.parametrize(
    ("norm", "position", "activation", "tie_embeddings", "scan_layers"),
    [
        ("rmsnorm", "rotary", "swiglu", False, True),
        ("rmsnorm", "learned", "gelu", True, False),
        ("layernorm", "rotary", "gelu", False, False),
        ("layernorm", "learned", "swiglu", True, True),
    ],
)
def test_the_number_of_parameters_has_a_closed_form(norm, position, activation, tie_embeddings, scan_layers):
    vocab, layers, embed, heads, head_dim, kv_heads, mlp, max_seq = 11, 3, 20, 4, 6, 2, 28, 9
    model = Transformer(
        vocab, layers, embed, heads, max_seq, kv_heads, head_dim, mlp, norm, position,
        activation=activation, tie_embeddings=tie_embeddings, scan_layers=scan_layers,
    )  # fmt: skip
    variables = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 5), jnp.int32))
    one_norm = embed * {"rmsnorm": 1, "layernorm": 2}[norm]
    attention = embed * head_dim * (2 * heads + 2 * kv_heads)
    feed_forward = embed * mlp * {"swiglu": 3, "gelu": 2}[activation]
    expected = layers * (attention + feed_forward + 2 * one_norm) + one_norm
    expected += vocab * embed * (1 if tie_embeddings else 2) + (max_seq * embed if position == "learned" else 0)
    assert sum(x.size for x in jax.tree.leaves(variables)) == expected
    assert ("lm_head" in variables["params"]) != tie_embeddings
    assert ("positions" in variables["params"]) == (position == "learned")


def test_gpt2_and_llama_have_the_published_number_of_parameters():
    gpt2 = Transformer(50257, 12, 768, heads=12, max_seq=1024, **{**GPT2, "bias": True})
    llama = Transformer(128_256, 16, 2048, 32, 8192, kv_heads=8, head_dim=64, mlp=8192)  # Llama 3.2 1B
    for model, num_params in ((gpt2, 124_439_808), (llama, 1_235_814_400)):
        variables = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 5), jnp.int32))
        assert sum(math.prod(x.shape) for x in jax.tree.leaves(variables)) == num_params


@pytest.mark.parametrize("activation", ["gelu", "swiglu"])
def test_biases_are_in_every_dense_layer_but_the_head(activation):
    options = {"activation": activation, "tie_embeddings": False, "scan_layers": False}
    model = Transformer(VOCAB, 1, EMBED, heads=4, max_seq=SEQ, bias=True, **options)
    shapes = jax.eval_shape(model.init, jax.random.key(0), INPUTS)["params"]
    dense = {**shapes["layers_0"]["attention"], **shapes["layers_0"]["mlp"]}
    assert len(dense) == 4 + (3 if activation == "swiglu" else 2)
    assert all(layer["bias"].shape == layer["kernel"].shape[1:] for layer in dense.values())
    assert set(shapes["lm_head"]) == {"kernel"}


def test_a_tied_head_reads_the_embedding_and_an_untied_one_does_not():
    def moves_logits(**options):
        params = params_of(**options)
        features = jnp.ones((1, 1, EMBED))

        def head(embedding):
            return make(**options).apply({"params": {**params, "embedding": embedding}}, features, method="head")

        return jnp.any(jax.jacobian(head)(params["embedding"])["embedding"] != 0)

    assert moves_logits(**GPT2)
    assert not moves_logits(**LLAMA)


def test_default_mlp_sizes_give_both_activations_about_as_many_parameters():
    def size(activation):
        model = Transformer(VOCAB, 1, embed=768, heads=12, max_seq=SEQ, activation=activation)
        variables = jax.eval_shape(model.init, jax.random.key(0), INPUTS)["params"]["layers"]["mlp"]
        return variables["up"]["kernel"].shape[-1], sum(x.size for x in jax.tree.leaves(variables))

    assert size("gelu") == (4 * 768, 2 * 4 * 768**2)
    assert size("swiglu") == (8 * 768 // 3, 8 * 768**2)


def test_initial_values_have_the_stated_standard_deviations_and_are_about_as_good_as_a_guess():
    model = Transformer(512, num_layers=8, embed=64, heads=4, max_seq=SEQ, mlp=256, tie_embeddings=False)
    params = jit(model.init)(jax.random.key(0), INPUTS)["params"]
    layers = params["layers"]
    depth = math.sqrt(2 * 8)
    stated = [
        (params["embedding"]["embedding"], 64**-0.5),
        (params["lm_head"]["kernel"], 64**-0.5),
        *((layers["attention"][name]["kernel"], 64**-0.5) for name in ("query", "key", "value")),
        (layers["attention"]["out"]["kernel"], 64**-0.5 / depth),
        *((layers["mlp"][name]["kernel"], 64**-0.5) for name in ("up", "gate")),
        (layers["mlp"]["down"]["kernel"], 256**-0.5 / depth),
    ]
    for kernel, deviation in stated:
        np.testing.assert_allclose(np.std(kernel), deviation, rtol=0.03)
    np.testing.assert_array_equal(layers["mlp_norm"]["scale"], 1)
    assert not np.allclose(*layers["mlp"]["up"]["kernel"][:2])  # each scanned layer draws its own
    # A guess costs log(vocab), and logits of variance 1 half a nat more: log E[exp(z)] = 1 / 2.
    np.testing.assert_allclose(jit(loss_of(model))(params), math.log(512) + 0.5, rtol=0.05)


# Norms and dtypes


def test_norms_have_the_values_of_their_definition():
    x = np.random.default_rng(0).normal(3, 5, (4, 6, 32)).astype(np.float32)
    centred = x - x.mean(-1, keepdims=True)
    expected = {
        "rmsnorm": x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5),
        "layernorm": centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5),
    }
    for name, norm in NORMS.items():
        actual, _ = norm().init_with_output(jax.random.key(0), x)
        np.testing.assert_allclose(actual, expected[name], rtol=1e-4, atol=1e-5)


def test_layernorm_keeps_a_small_variance_beside_a_large_mean():
    x = np.random.default_rng(0).normal(0, 1, (1, 64)).astype(np.float32)
    actual, _ = NORMS["layernorm"]().init_with_output(jax.random.key(0), x + 4096)
    np.testing.assert_allclose(actual, (x - x.mean()) / x.std(), atol=2e-2)


def test_norm_statistics_of_bfloat16_are_float32():
    ones = jnp.ones((1, 4096), jnp.bfloat16)  # added up in bfloat16 they stall at 256
    for scale in (1, 100):
        actual, _ = NORMS["rmsnorm"]().init_with_output(jax.random.key(0), ones * scale)
        np.testing.assert_allclose(actual.astype(jnp.float32), 1, rtol=1e-2)


@pytest.mark.parametrize("options", [LLAMA, GPT2], ids=["llama", "gpt2"])
def test_bfloat16_parameters_give_bfloat16_activations_and_float32_statistics(options):
    model = make(**options)
    params = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params_of(**options))
    logits = jax.eval_shape(model.apply, {"params": params}, INPUTS)
    assert logits.dtype == jnp.bfloat16
    gradients = jax.eval_shape(jax.grad(loss_of(model)), params)
    assert all(leaf.dtype == jnp.bfloat16 for leaf in jax.tree.leaves(gradients))
    float32 = {"exp", "log", "rsqrt", "cos", "sin", "reduce_max"}
    found = set()
    for equation in equations(jax.value_and_grad(loss_of(model)), params):
        name = equation.primitive.name
        if name in float32:
            found.add(name)
            assert equation.invars[0].aval.dtype == jnp.float32, equation
        is_attention = name == "dot_general" and equation.params["preferred_element_type"] == jnp.float32
        if name == "dot_general" and not is_attention:
            assert {x.aval.dtype for x in equation.invars} == {jnp.dtype(jnp.bfloat16)}, equation
    assert found >= {"exp", "log", "rsqrt", "reduce_max"}


def test_bfloat16_logits_are_near_the_float32_ones():
    params = params_of(**LLAMA)
    rounded = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    exact = jit(make(**LLAMA).apply)({"params": params}, INPUTS)
    actual = jit(make(**LLAMA).apply)({"params": rounded}, INPUTS)
    assert np.linalg.norm(actual.astype(jnp.float32) - exact) < 0.03 * np.linalg.norm(exact)


# Dropout


def test_dropout_acts_in_training_only():
    params = params_of(**LLAMA)

    @functools.partial(jit, static_argnames=("dropout", "train"))
    def run(key, dropout, train):
        model = make(**LLAMA, dropout=dropout)
        return model.apply({"params": params}, INPUTS, train=train, rngs={"dropout": key})

    keys = [jax.random.key(seed) for seed in (1, 1, 2)]
    without = run(keys[0], dropout=0.0, train=True)
    np.testing.assert_array_equal(run(keys[0], dropout=0.5, train=False), without)
    first, again, other = (run(key, dropout=0.5, train=True) for key in keys)
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)
    assert not np.allclose(first, without)


# What is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": "batchnorm"}, "no norm='batchnorm'. Use one of rmsnorm, layernorm."),
        ({"remat": "everything"}, "no remat='everything'. Use one of none, full, attention, matmuls."),
        ({"attention": "flash"}, "no attention='flash'. Use one of auto, xla, cudnn."),
        ({"kv_heads": 3}, "kv_heads=3 does not divide heads=4"),
        ({"embed": 18}, "heads=4 does not divide embed=18"),
        ({"head_dim": 5}, "rotary positions turn pairs of features and need an even head_dim"),
        ({"unroll": 0}, "unroll of 1 or more, not 0"),
        ({"mlp": -1}, "mlp of 1 or more, or 0 for its default, not -1"),
        ({"dropout": 1.0}, "dropout rate from 0 to below 1, not 1.0"),
    ],
)
def test_options_that_cannot_work_are_refused_before_anything_is_traced(options, message):
    with pytest.raises(ValueError, match=message):
        Transformer(**{"vocab_size": VOCAB, "num_layers": 2, "embed": EMBED, "heads": 4, "max_seq": SEQ, **options})


def test_cudnn_on_a_cpu_is_refused_when_it_would_run_and_not_when_parameters_are_made():
    model = make(**LLAMA, attention="cudnn")
    jax.eval_shape(model.init, jax.random.key(0), INPUTS)
    with pytest.raises(ValueError, match="it needs an NVIDIA GPU and this is cpu"):
        jax.eval_shape(model.apply, {"params": params_of(**LLAMA)}, INPUTS)


# The cache of generation (tests/generate_test.py compares what comes out of it)


@pytest.mark.parametrize("scan_layers", [True, False])
def test_keys_and_values_are_kept_only_when_asked(scan_layers):
    model = make(**LLAMA, scan_layers=scan_layers)
    made = jax.eval_shape(model.init, jax.random.key(0), INPUTS)
    assert set(made) == {"params"}
    _, kept = jax.eval_shape(functools.partial(model.apply, mutable=["cache"]), made, INPUTS)
    shapes = {leaf.shape for leaf in jax.tree.leaves(kept["cache"])}
    assert shapes == {(*([LAYERS] * scan_layers), BATCH, SEQ, 2, EMBED // 4)}
    _, kept = jax.eval_shape(functools.partial(model.apply, mutable=["other"]), made, INPUTS)
    assert "cache" not in kept


def test_a_training_step_computes_nothing_for_the_cache():
    model, params = make(**LLAMA), params_of(**LLAMA)
    assert count("scatter", jax.grad(loss_of(model)), params) == 0
    plain = str(jax.make_jaxpr(loss_of(model))(params))
    assert plain == str(jax.make_jaxpr(loss_of(model, positions=None))(params))
