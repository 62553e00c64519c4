"""Attention: the numbers, the choice of a kernel, and what rematerialisation keeps of it."""

import functools
import itertools
import logging
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding, PartitionSpec

from jaxtrain.config import Mesh, Sharding
from jaxtrain.layout import make_layout
from jaxtrain.models import attention
from jaxtrain.models.attention import OUTPUT_NAMES, Target, attend, attend_cached, choose, name_residuals
from jaxtrain.sharding import make_mesh
from tests.models.jaxprs import count, equations

H100, A100, V100, CPU = (
    Target("cuda", (9, 0)),
    Target("cuda", (8, 0)),
    Target("cuda", (7, 0)),
    Target("cpu"),
)


jitted = jax.jit(attend)


def make_inputs(dtype=jnp.float32):
    rng = np.random.default_rng(0)
    return [jnp.asarray(2 * rng.normal(size=(2, 6, heads, 8)), dtype) for heads in (4, 2, 2)]


@pytest.mark.parametrize("causal", [True, False])
def test_values_and_gradients_are_those_of_jax_nn(causal):
    def run(function):
        return jax.jit(jax.value_and_grad(lambda *inputs: jnp.sum(function(*inputs) ** 2), argnums=(0, 1, 2)))

    inputs = make_inputs()
    actual = run(functools.partial(attend, causal=causal))(*inputs)
    expected = run(functools.partial(jax.nn.dot_product_attention, is_causal=causal))(*inputs)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert np.linalg.norm(a - b) < 1e-5 * np.linalg.norm(b)


def test_grouped_query_attention_equals_attention_with_repeated_key_heads():
    query, key, value = make_inputs()
    repeated = jitted(query, np.repeat(key, 2, axis=2), np.repeat(value, 2, axis=2))
    np.testing.assert_allclose(jitted(query, key, value), repeated, rtol=1e-5, atol=1e-6)


def test_no_position_sees_a_later_one():
    query, key, value = make_inputs()

    def seen_by(position):
        return jax.jit(jax.grad(lambda key, value: jnp.sum(attend(query, key, value)[:, position]), argnums=(0, 1)))

    for gradient in seen_by(3)(key, value):
        size = np.abs(gradient).sum((0, 2, 3))
        np.testing.assert_array_equal(size[4:], 0)
        assert np.all(size[:4] > 0)


def test_huge_scores_do_not_overflow():
    query, key, value = make_inputs()
    assert np.all(np.isfinite(jitted(query * 1e3, key * 1e3, value)))


def test_the_softmax_of_bfloat16_inputs_is_float32_and_all_products_are_of_bfloat16():
    inputs = make_inputs(dtype=jnp.bfloat16)
    gradient = jax.grad(lambda *inputs: jnp.sum(attend(*inputs).astype(jnp.float32)), argnums=(0, 1, 2))
    assert jax.eval_shape(attend, *inputs).dtype == jnp.bfloat16
    assert all(x.dtype == jnp.bfloat16 for x in jax.eval_shape(gradient, *inputs))
    found = list(equations(gradient, *inputs))
    exponentials = [equation.outvars[0].aval.dtype for equation in found if equation.primitive.name == "exp"]
    products = [str(equation.params["precision"]) for equation in found if equation.primitive.name == "dot_general"]
    assert exponentials == [jnp.float32]
    assert products == ["BF16_BF16_F32"] * 6


def test_bfloat16_and_float16_values_are_near_the_float32_ones():
    for dtype, tolerance in ((jnp.bfloat16, 2e-2), (jnp.float16, 3e-3)):
        inputs = make_inputs(dtype=dtype)
        exact = jitted(*(np.asarray(x, np.float32) for x in inputs))
        np.testing.assert_allclose(np.asarray(jitted(*inputs), np.float32), exact, atol=tolerance)


def test_auto_takes_cudnn_exactly_where_all_its_conditions_are_met():
    dtypes = [jnp.float32, jnp.bfloat16, jnp.float16]
    for target, dtype, head_dim in itertools.product([H100, A100, V100, CPU], dtypes, [32, 36, 64, 128, 136, 256, 264]):
        fits = head_dim % 8 == 0 and head_dim <= {H100: 256, A100: 128}.get(target, 0) and dtype != jnp.float32
        kernel, why = choose("auto", target, dtype, head_dim)
        assert (kernel == "cudnn") == fits, why
        assert choose("xla", target, dtype, head_dim) == ("xla", "asked for")
        if fits:
            assert choose("cudnn", target, dtype, head_dim) == ("cudnn", "asked for")
        else:
            with pytest.raises(ValueError, match=r'attention="cudnn" cannot run'):
                choose("cudnn", target, dtype, head_dim)


@pytest.mark.parametrize(
    ("target", "dtype", "head_dim", "reason"),
    [
        (CPU, jnp.bfloat16, 64, "needs an NVIDIA GPU and this is cpu"),
        (Target("gpu"), jnp.bfloat16, 64, "needs an NVIDIA GPU and this is gpu"),
        (V100, jnp.float16, 64, "this GPU has 7.0"),
        (H100, jnp.float32, 64, "the inputs are float32"),
        (A100, jnp.bfloat16, 256, "up to 128 and this is 256"),
        (H100, jnp.bfloat16, 36, "multiple of 8 up to 256 and this is 36"),
    ],
)
def test_the_reason_names_the_condition_that_is_not_met(target, dtype, head_dim, reason):
    assert reason in choose("auto", target, dtype, head_dim)[1]


def test_an_unknown_implementation_is_refused_with_the_list():
    with pytest.raises(ValueError, match='Use "auto", "xla" or "cudnn"'):
        choose("flash", H100, jnp.bfloat16, 64)  # type: ignore[arg-type]


def test_the_choice_is_logged_once(caplog):
    attention.announce.cache_clear()
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            jax.eval_shape(lambda *inputs: attend(*inputs), *make_inputs())  # a new function, so it is traced again
    assert [record.getMessage() for record in caplog.records] == [
        "attention runs on xla: cuDNN cannot run: it needs an NVIDIA GPU and this is cpu"
    ]


def _fused(*inputs):
    """A fused kernel as remat sees one: its residual never leaves it. Its forward pass is the only cumsum."""

    @jax.custom_vjp
    def kernel(query, key, value):
        return forward(query, key, value)[0]

    def forward(query, key, value):
        residual = jnp.cumsum(query * key)
        return jnp.sum(residual) * value, (query, key, value, residual)

    def backward(residuals, gradient):
        query, key, value, residual = residuals
        return gradient * key, gradient * query, gradient * jnp.sum(residual) + 0 * value

    kernel.defvjp(forward, backward)
    return kernel(*inputs)


def test_a_fused_kernel_with_named_residuals_does_not_run_again_in_the_backward_pass():
    policy = jax.checkpoint_policies.save_only_these_names(*OUTPUT_NAMES)

    def forward_passes(kernel):
        layer = jax.checkpoint(lambda *inputs: jnp.sin(kernel(*inputs)), policy=policy)
        return count("cumsum", jax.grad(lambda *inputs: jnp.sum(layer(*inputs)), argnums=(0, 1, 2)), *inputs)

    inputs = [jnp.arange(1.0, 4.0)] * 3
    assert forward_passes(name_residuals(_fused)) == 1
    assert forward_passes(lambda *inputs: checkpoint_name(_fused(*inputs), OUTPUT_NAMES[0])) == 2

    def gradient(kernel):
        return jax.grad(lambda *inputs: jnp.sum(kernel(*inputs)), argnums=(0, 1, 2))(*inputs)

    for a, b in zip(gradient(name_residuals(_fused)), gradient(_fused), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_a_query_at_a_position_of_a_cache_sees_what_it_sees_in_a_whole_sequence(kv_heads):
    rng = np.random.default_rng(0)
    query, key, value = (rng.normal(size=(3, 6, heads, 8)).astype(np.float32) for heads in (4, kv_heads, kv_heads))
    whole = attend(query, key, value, "xla")
    positions = np.array([0, 5, 2])
    rows = np.arange(3)
    mixed = attend_cached(query[rows, positions][:, None], key, value, positions)
    np.testing.assert_allclose(mixed[:, 0], whole[rows, positions], rtol=1e-5, atol=1e-6)
    beyond = np.arange(6) > positions[:, None]
    key[beyond], value[beyond] = 1e9, -1e9  # whatever is there
    again = attend_cached(query[rows, positions][:, None], key, value, positions)
    np.testing.assert_array_equal(again, mixed)


def test_a_split_sequence_is_not_for_cudnn():
    kernel, why = choose("auto", H100, jnp.bfloat16, 64, seq_is_split=True)
    assert kernel == "xla"
    assert "it takes whole sequences" in why
    with pytest.raises(ValueError, match=r'attention="cudnn" cannot run: it takes whole sequences .*mesh.sequence'):
        choose("cudnn", H100, jnp.bfloat16, 64, seq_is_split=True)
    assert choose("cudnn", H100, jnp.bfloat16, 64)[0] == "cudnn"


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("axes", [{"sequence": 2, "tensor": 4}, {"sequence": 4, "tensor": 2}, {"data": 2, "tensor": 4}])
def test_split_over_heads_and_seq_it_gives_the_same_values_and_gradients(axes, kv_heads, causal):
    rng = np.random.default_rng(0)
    inputs = [jnp.asarray(rng.normal(size=(2, 8, heads, 8)), jnp.float32) for heads in (4, kv_heads, kv_heads)]
    layout = make_layout(make_mesh(Mesh(**{"data": 1, **axes})), Sharding())

    def total(*inputs):
        return jnp.sum(attend(*inputs, causal=causal) ** 2)

    expected = jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2)))(*inputs)
    actual = jax.jit(jax.value_and_grad(layout.traced(total), argnums=(0, 1, 2)))(*inputs)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert np.linalg.norm(a - b) < 1e-5 * np.linalg.norm(b)


def test_fewer_heads_of_keys_than_devices_are_repeated_beside_the_queries_without_communication():
    mesh = make_mesh(Mesh(data=1, fsdp=2, tensor=4))
    specs = [PartitionSpec("fsdp", None, "tensor"), PartitionSpec("fsdp"), PartitionSpec("fsdp")]
    inputs = [
        jax.ShapeDtypeStruct((2, 6, heads, 8), jnp.float32, sharding=NamedSharding(mesh, spec))
        for heads, spec in zip((12, 3, 3), specs, strict=True)
    ]
    layout = make_layout(mesh, Sharding())
    compiled = jax.jit(layout.traced(attend)).lower(*inputs).compile()
    assert not re.search("all-gather|all-reduce|all-to-all|collective-permute", compiled.as_text())
    assert compiled.output_shardings.shard_shape((2, 6, 12, 8)) == (1, 6, 3, 8)
