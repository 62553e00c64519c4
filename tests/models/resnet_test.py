"""Residual networks: published sizes, the blocks by hand, dtypes and batch statistics."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxtrain.models.resnet import Block, Convolution, ResNet
from jaxtrain.tasks.adapters import as_model

IMAGES = np.random.default_rng(0).normal(1, 2, (4, 8, 8, 3)).astype(np.float32)
TINY = {"stage_sizes": (1, 1), "num_classes": 5, "width": 4}


def convolve(x, kernel, stride):
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), [(len(kernel) // 2,) * 2] * 2, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def standardize(x):
    return (x - x.mean((0, 1, 2))) / np.sqrt(x.var((0, 1, 2)) + 1e-5)


def sizes(model, images):
    params, model_state = jax.eval_shape(as_model(model).init, jax.random.key(0), images)
    return [sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree)) for tree in (params, model_state)]


@pytest.mark.parametrize(
    ("stage_sizes", "bottleneck", "num_params"), [((2, 2, 2, 2), False, 11_689_512), ((3, 4, 6, 3), True, 25_557_032)]
)
def test_full_sizes_have_the_published_number_of_parameters(stage_sizes, bottleneck, num_params):
    model = functools.partial(ResNet, stage_sizes, 1000, bottleneck=bottleneck)
    assert sizes(model, jnp.zeros((1, 224, 224, 3)))[0] == num_params


@pytest.mark.parametrize(("stem", "stage_inputs"), [("small", [(8, 4), (8, 16)]), ("imagenet", [(2, 4), (2, 16)])])
def test_height_and_width_halve_between_stages_and_are_a_quarter_behind_the_large_stem(monkeypatch, stem, stage_inputs):
    seen = []
    call = Block.__call__
    monkeypatch.setattr(Block, "__call__", lambda self, x: seen.append((x.shape[1], x.shape[-1])) or call(self, x))
    model = ResNet(**TINY, stem=stem, rngs=nnx.Rngs(0))
    model.eval()
    assert jax.eval_shape(model, IMAGES).shape == (4, 5)
    assert seen == stage_inputs


@pytest.mark.parametrize("stride", [1, 2])
def test_a_plain_block_is_two_normalised_convolutions_beside_its_shortcut(stride):
    block = Block(3, 3, stride, bottleneck=False, rngs=nnx.Rngs(0))
    first, last = block.convolutions
    last.norm.scale[...] = jnp.full(3, 0.5)
    residual = standardize(convolve(IMAGES, first.convolution.kernel[...], stride))
    residual = 0.5 * standardize(convolve(np.maximum(residual, 0), last.convolution.kernel[...], 1))
    if stride == 1:
        assert block.shortcut is None
        shortcut = IMAGES
    else:
        shortcut = standardize(convolve(IMAGES, block.shortcut.convolution.kernel[...], stride))
    np.testing.assert_allclose(block(IMAGES), np.maximum(residual + shortcut, 0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bottleneck", [True, False])
def test_a_block_starts_as_the_identity_of_what_is_positive(bottleneck):
    block = Block(16, 4 if bottleneck else 16, 1, bottleneck, rngs=nnx.Rngs(0))
    x = np.random.default_rng(1).normal(size=(2, 4, 4, 16)).astype(np.float32)
    np.testing.assert_array_equal(block(x), np.maximum(x, 0))


def test_a_bottleneck_that_halves_the_image_reads_every_pixel():
    block = Block(3, 8, 2, bottleneck=True, rngs=nnx.Rngs(0))
    block.convolutions[-1].norm.scale[...] = jnp.ones(32)
    block.eval()
    gradient = jax.grad(lambda x: jnp.sum(block(x) ** 2))(IMAGES)
    assert np.all(np.abs(gradient).max((0, 3)) > 0)


def test_batch_statistics_are_used_in_training_and_their_average_in_evaluation():
    layer = Convolution(3, 6, 3, rngs=nnx.Rngs(0))
    convolved = convolve(IMAGES, layer.convolution.kernel[...], 1)
    np.testing.assert_allclose(layer(IMAGES), standardize(convolved), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(layer.norm.mean[...], 0.1 * convolved.mean((0, 1, 2)), rtol=1e-4, atol=1e-5)
    layer.eval()
    mean, var = layer.norm.mean[...], layer.norm.var[...]
    np.testing.assert_allclose(layer(IMAGES), (convolved - mean) / np.sqrt(var + 1e-5), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(layer.norm.mean[...], mean)


def test_bfloat16_parameters_give_bfloat16_activations_and_float32_statistics(monkeypatch):
    seen = set()
    call = Convolution.__call__

    def watched(self, x):
        out = call(self, x)
        seen.update((x.dtype, out.dtype))
        return out

    monkeypatch.setattr(Convolution, "__call__", watched)
    model = as_model(functools.partial(ResNet, **TINY))
    params, model_state = jax.eval_shape(model.init, jax.random.key(0), IMAGES)
    params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.bfloat16), params)
    seen.clear()

    def run(params, model_state):
        return model.apply(params, model_state, IMAGES, jax.random.key(1), True)

    logits, changed = jax.eval_shape(run, params, model_state)
    assert seen == {jnp.dtype(jnp.bfloat16)}
    assert logits.dtype == jnp.bfloat16
    assert {leaf.dtype for leaf in jax.tree.leaves(changed)} == {jnp.dtype(jnp.float32)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stem": "large"}, "no stem='large'. Use one of imagenet, small."),
        ({"stage_sizes": ()}, "one stage or more"),
        ({"stage_sizes": (2, 0)}, "from 1 on"),
        ({"channels": 0}, "from 1 on"),
    ],
)
def test_options_that_cannot_work_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ResNet(**{**TINY, **options}, rngs=nnx.Rngs(0))
