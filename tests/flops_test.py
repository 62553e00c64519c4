"""The walk against closed forms, against XLA's own count, and against counting multiplications one by one."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec

from jaxtrain.flops import Flops, count, device_peak
from jaxtrain.models.transformer import Transformer
from jaxtrain.tasks.language_modeling import LanguageModeling

BATCH, SEQ, VOCAB, EMBED, HEADS, MLP, LAYERS = 2, 64, 512, 128, 4, 512, 3
SHAPE = {
    "vocab_size": VOCAB,
    "num_layers": LAYERS,
    "embed": EMBED,
    "heads": HEADS,
    "mlp": MLP,
    "max_seq": SEQ,
    "activation": "gelu",
}


def flops(function, *arguments):
    return count(jax.make_jaxpr(function)(*arguments))


def array(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def language_model(loss_chunks=0, **changes):
    """The gradient of a Transformer's loss, and abstract arguments for it."""
    task = LanguageModeling(Transformer(**{**SHAPE, **changes}), loss_chunks=loss_chunks)
    batch = {"tokens": array(BATCH, SEQ + 1, dtype=jnp.int32), "mask": array(BATCH, SEQ, dtype=jnp.bool_)}
    params, model_state = jax.eval_shape(task.init, jax.random.key(0), batch)

    def loss(params, batch):
        return task.loss(params, model_state, batch, jax.random.key(0), True).loss.total

    return jax.grad(loss), params, batch


def closed_form(kv_heads=HEADS):
    """Forward pass of the Transformer: kernels, tied head, and scores and their use by each query."""
    kernels = LAYERS * (2 * EMBED * EMBED + 2 * EMBED * EMBED * kv_heads // HEADS + 2 * EMBED * MLP) + EMBED * VOCAB
    attention = LAYERS * 2 * SEQ * EMBED
    return 2 * BATCH * SEQ * (kernels + attention)


@pytest.mark.parametrize("changes", [{}, {"scan_layers": False}, {"kv_heads": 2}, {"unroll": 3}])
def test_a_transformer_takes_the_flops_of_the_closed_form(changes):
    found = flops(*language_model(**changes))
    expected = 3 * closed_form(kv_heads=changes.get("kv_heads", HEADS))
    assert abs(found.model / expected - 1) < 0.01
    assert found.recomputed == 0


def test_recomputation_is_told_apart_and_changes_nothing_else():
    plain = flops(*language_model())
    rematted = flops(*language_model(remat="full"))
    assert rematted.model == plain.model
    layers = closed_form() - 2 * BATCH * SEQ * EMBED * VOCAB
    last_product = LAYERS * 2 * BATCH * SEQ * EMBED * MLP  # its result is not needed
    assert rematted.recomputed == layers - last_product
    scores = LAYERS * 2 * BATCH * SEQ * SEQ * EMBED
    assert flops(*language_model(remat="attention")).recomputed < rematted.recomputed - scores
    assert rematted.hardware == rematted.model + rematted.recomputed


def test_a_loss_in_chunks_computes_its_logits_again():
    plain, chunked = flops(*language_model()), flops(*language_model(loss_chunks=4))
    assert chunked.model == plain.model
    assert chunked.recomputed == 2 * BATCH * SEQ * EMBED * VOCAB


def test_an_unrolled_model_takes_what_xla_counts_and_a_scanned_one_more_than_that():
    def xla(**changes):
        gradient, *arguments = language_model(**changes)
        return jax.jit(gradient).lower(*arguments).cost_analysis()["flops"]

    found = flops(*language_model(scan_layers=False)).hardware
    assert abs(xla(scan_layers=False) / found - 1) < 0.05
    assert xla() < 0.7 * found  # why there is a walk


def resnet50(params, image):
    """ResNet-50 v1.5 of plain convolutions, without its normalisations; `params` is an iterator of kernels."""

    def conv(x, stride=1):
        kernel = next(params)
        return lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    x = conv(image, 2)
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            y = conv(conv(conv(x), stride))
            x = (conv(x, stride) if not block else x) + y
    return x.mean((1, 2)) @ next(params)


def resnet50_kernels():
    yield 7, 7, 3, 64
    features = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        inner = 64 * 2**stage
        for block in range(blocks):
            yield 1, 1, features, inner
            yield 3, 3, inner, inner
            yield 1, 1, inner, 4 * inner
            if not block:
                yield 1, 1, features, 4 * inner
            features = 4 * inner
    yield features, 1000


def test_resnet50_at_224_takes_4_1_giga_multiply_adds():
    kernels = [array(*shape) for shape in resnet50_kernels()]
    num_params = sum(kernel.size for kernel in kernels)
    assert abs(num_params / 25.5e6 - 1) < 0.01  # beside 54 thousand of normalisation and bias
    forward = flops(lambda kernels, image: resnet50(iter(kernels), image), kernels, array(1, 224, 224, 3))
    assert abs(forward.model / 2 / 4.1e9 - 1) < 0.02

    def loss(kernels, image):
        return resnet50(iter(kernels), image).sum()

    both = flops(jax.grad(loss), kernels, array(1, 224, 224, 3))
    first = 2 * 112 * 112 * 64 * 7 * 7 * 3  # the image needs no gradient
    assert abs(both.model / (3 * forward.model - first) - 1) < 0.01


def multiplications(size, kernel, stride, padding, holes, spread):
    """One dim, by looking at each pair."""
    low, high = padding
    dilated = np.zeros((size - 1) * holes + 1, int)
    dilated[::holes] = 1
    padded = np.concatenate([np.ones(low, int) * 0, dilated, np.zeros(high, int)])
    positions = range(0, len(padded) - (kernel - 1) * spread, stride)
    # Padding counts where an element would be, had the input gone on.
    return sum((o + t * spread - low) % holes == 0 for o in positions for t in range(kernel))


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding", "holes", "spread"),
    [
        (9, 3, 1, (1, 1), 1, 1),
        (9, 3, 2, (0, 1), 1, 1),
        (9, 3, 1, (2, 2), 1, 2),
        (5, 3, 1, (1, 2), 2, 1),
        (5, 4, 1, (2, 3), 3, 1),
        (6, 3, 2, (2, 1), 3, 2),
    ],
)
def test_a_convolution_counts_the_pairs_that_meet_no_hole(size, kernel, stride, padding, holes, spread):
    conv = functools.partial(
        lax.conv_general_dilated,
        window_strides=(stride,),
        padding=[padding],
        lhs_dilation=(holes,),
        rhs_dilation=(spread,),
        dimension_numbers=("NWC", "WIO", "NWC"),
    )
    found = flops(conv, array(2, size, 3), array(kernel, 3, 5)).model
    assert found == 2 * 2 * 3 * 5 * multiplications(size, kernel, stride, padding, holes, spread)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("stride", [1, 2])
def test_the_gradients_of_grouped_and_strided_convolutions_cost_what_the_forward_pass_does(groups, stride):
    def conv(x, w):
        return lax.conv_general_dilated(
            x, w, (stride, stride), "VALID", feature_group_count=groups, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    x, w = array(3, 33, 33, 8), array(3, 3, 8 // groups, 12)
    forward = flops(conv, x, w).model
    size = (33 - 3) // stride + 1
    assert forward == 2 * 3 * size * size * 3 * 3 * 8 // groups * 12
    for argument in (0, 1):
        both = flops(jax.value_and_grad(lambda *a: conv(*a).sum(), argument), x, w).model
        # The gradient of the input also has positions at the rim, where the kernel reaches over the edge.
        assert 2 * forward <= both <= (2 if argument else 2.2) * forward


def test_products_inside_every_kind_of_call_are_counted_as_often_as_they_run():
    square = array(8, 8)
    product = 2 * 8**3

    def twice(x):
        return jax.jit(jnp.matmul)(x, x)

    @jax.custom_vjp
    def custom(x):
        return x @ x

    custom.defvjp(lambda x: (x @ x, x), lambda x, g: (g @ x,))

    cases = {
        "jit": (twice, 1),
        "scan": (lambda x: lax.scan(lambda c, _: (c @ x @ x, None), x, None, length=5)[0], 10),
        "nested scans": (
            lambda x: lax.fori_loop(0, 3, lambda _, y: lax.fori_loop(0, 4, lambda _, z: z @ x, y), x),
            12,
        ),
        "cond": (lambda x: lax.cond(x[0, 0] > 0, lambda y: y @ y @ y, lambda y: y @ y, x), 2),
        "remat": (jax.checkpoint(twice), 1),
        "custom_jvp": (lambda x: jax.nn.relu(x @ x), 1),
        "custom_vjp": (custom, 1),
        "its rule": (jax.grad(lambda x: custom(x).sum()), 2),
        "vmap": (lambda x: jax.vmap(lambda row: row @ x)(x), 1),
    }
    assert {name: flops(function, square).model / product for name, (function, _) in cases.items()} == {
        name: times for name, (_, times) in cases.items()
    }


def test_a_loop_of_unknown_length_counts_once_and_says_so():
    found = flops(lambda x: lax.while_loop(lambda y: y[0, 0] < 9, lambda y: y @ y, x), array(8, 8))
    assert (found.model, found.unknown_loops) == (2 * 8**3, 1)
    assert "1 loops of unknown length were counted as one turn" in str(found)
    assert flops(lambda x: lax.while_loop(lambda y: y[0, 0] < 9, lambda y: y + y, x), array(8, 8)) == Flops()


def test_a_shard_map_counts_every_shard():
    mesh = jax.make_mesh((4, 2), ("data", "fsdp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    spec = PartitionSpec("data")

    def over(*axes):
        specs = {"in_specs": (spec, PartitionSpec()), "out_specs": spec}
        return jax.shard_map(lambda x, w: x @ w, mesh=mesh, axis_names=set(axes), **specs)

    product = 2 * 16 * 8 * 8
    assert flops(over("data"), array(16, 8), array(8, 8)).model == product
    # Over fsdp, which the specs do not name, each of two devices computes the same rows.
    assert flops(over("data", "fsdp"), array(16, 8), array(8, 8)).model == 2 * product


def test_what_cannot_be_looked_into_is_named():
    found = flops(lambda x: jax.pure_callback(lambda y: y, array(8), x), array(8))
    assert found.opaque == {"pure_callback"}
    assert "not counted: pure_callback" in str(found)


def test_cudnn_attention_counts_as_plain_attention_does(monkeypatch):
    from jax._src.cudnn import fused_attention_stablehlo

    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda *_: 91000)
    monkeypatch.setattr(fused_attention_stablehlo, "check_compute_capability", lambda *_: True)
    query, key = array(2, 64, 4, 32, dtype=jnp.bfloat16), array(2, 64, 2, 32, dtype=jnp.bfloat16)

    def loss(implementation, *inputs):
        mixed = jax.nn.dot_product_attention(*inputs, is_causal=True, implementation=implementation)
        return mixed.astype(jnp.float32).sum()

    cudnn, plain = (
        flops(jax.grad(functools.partial(loss, name), argnums=(0, 1, 2)), query, key, key) for name in ("cudnn", "xla")
    )
    assert cudnn.model == plain.model == 6 * 2 * 2 * 4 * 64 * 64 * 32
    assert cudnn.recomputed == cudnn.model / 6


def test_peaks_of_known_devices_and_none_of_others():
    assert device_peak("NVIDIA H100 80GB HBM3", "bfloat16") == 989.4e12
    assert device_peak("NVIDIA H100 PCIe", "float16") == 756e12
    assert device_peak("NVIDIA A100-SXM4-40GB", "float32") == 156e12
    assert device_peak("Tesla V100-SXM2-16GB", "bfloat16") is None
    assert device_peak("Tesla T4", "float16") == 65e12
    unknown = ("cpu", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA A10G", "NVIDIA L40", "NVIDIA H100", "TPU v4")
    for kind, dtype in itertools.product(unknown, ("bfloat16", "float32")):
        assert device_peak(kind, dtype) is None


def test_the_time_at_the_peak_is_shared_among_the_devices_and_leaves_out_what_is_recomputed():
    class Device:
        device_kind = "NVIDIA H200"

    assert Flops(model=989_400, recomputed=7).secs_at_peak([Device()] * 4, "bfloat16") == pytest.approx(1e-9 / 4)
    assert Flops(model=1).secs_at_peak(jax.devices(), "float32") is None
