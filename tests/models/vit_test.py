"""The vision transformer: its published size, what its patches are, and that every patch sees every other."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain.models.vit import ViT, _patches
from tests.models.jaxprs import count

LAYERS, EMBED = 2, 16
IMAGES = np.random.default_rng(0).normal(size=(3, 8, 4, 2)).astype(np.float32)


def make(**options):
    return ViT(**{"num_classes": 5, "patch": 2, "num_layers": LAYERS, "embed": EMBED, "heads": 2, **options})


@functools.cache
def params_of():
    """Parameters of a usual size; those that start at zero would hide what they multiply."""
    shapes = jax.eval_shape(make().init, jax.random.key(0), IMAGES)["params"]
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda x: (rng.normal(size=x.shape) * EMBED**-0.5).astype(np.float32), shapes)


def unstack(params):
    rest = {name: value for name, value in params.items() if name != "layers"}
    return {**rest, **{f"layers_{i}": jax.tree.map(lambda x, i=i: x[i], params["layers"]) for i in range(LAYERS)}}


@functools.cache
def logits():
    return np.asarray(jax.jit(make().apply)({"params": params_of()}, IMAGES))


def test_the_full_size_has_the_published_number_of_parameters():
    model = ViT(num_classes=1000, patch=16, num_layers=12, embed=768, heads=12)
    variables = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 224, 224, 3)))
    assert sum(math.prod(x.shape) for x in jax.tree.leaves(variables)) == 86_567_656


def test_patches_are_squares_of_the_image_row_by_row():
    patches = _patches(jnp.asarray(IMAGES), 2)
    assert patches.shape == (3, 4 * 2, 2 * 2 * 2)
    for number, (top, left) in enumerate((top, left) for top in range(0, 8, 2) for left in range(0, 4, 2)):
        np.testing.assert_array_equal(patches[:, number], IMAGES[:, top : top + 2, left : left + 2].reshape(3, -1))


def test_the_embedding_is_a_convolution_with_the_patch_as_its_stride():
    # The form in which the paper's own code has it.
    kernel = np.random.default_rng(1).normal(size=(2, 2, 2, 6)).astype(np.float32)
    convolved = jax.lax.conv_general_dilated(
        jnp.asarray(IMAGES), kernel, (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    np.testing.assert_allclose(
        _patches(jnp.asarray(IMAGES), 2) @ kernel.reshape(-1, 6), convolved.reshape(3, -1, 6), rtol=1e-4, atol=1e-5
    )


def test_every_pixel_moves_every_logit():
    gradients = jax.jit(jax.jacobian(lambda image: make().apply({"params": params_of()}, image[None])[0]))(IMAGES[0])
    assert gradients.shape == (5, 8, 4, 2)
    assert np.all(gradients != 0)


def test_the_order_of_patches_is_told_by_positions_alone():
    apply = jax.jit(make().apply)
    swapped = np.concatenate([IMAGES[:, 6:], IMAGES[:, 2:6], IMAGES[:, :2]], axis=1)
    assert np.abs(apply({"params": params_of()}, swapped) - logits()).max() > 1e-3
    blind = {"params": {**params_of(), "positions": np.zeros_like(params_of()["positions"])}}
    np.testing.assert_allclose(apply(blind, swapped), apply(blind, IMAGES), rtol=1e-4, atol=1e-5)


def test_scanned_layers_and_rematerialised_ones_give_the_same_logits():
    params = unstack(params_of())
    unscanned = jax.jit(make(scan_layers=False).apply)({"params": params}, IMAGES)
    np.testing.assert_allclose(unscanned, logits(), rtol=1e-4, atol=1e-5)

    def products(remat):
        loss = lambda params: make(scan_layers=False, remat=remat).apply({"params": params}, IMAGES).sum()  # noqa: E731
        return count("dot_general", jax.grad(loss), params)

    assert products("full") > products("none")


def test_a_new_model_guesses_evenly_and_has_the_initial_values_stated():
    params = jax.jit(make().init)(jax.random.key(0), IMAGES)["params"]
    np.testing.assert_array_equal(params["head"]["kernel"], 0)
    np.testing.assert_array_equal(params["token"], 0)
    np.testing.assert_allclose(np.std(params["positions"]), EMBED**-0.5, rtol=0.2)
    np.testing.assert_array_equal(params["layers"]["attention_norm"]["scale"], 1)
    np.testing.assert_array_equal(make().apply({"params": params}, IMAGES), 0)


def test_bfloat16_parameters_give_bfloat16_logits_also_of_float32_images():
    params = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params_of())
    assert jax.eval_shape(make().apply, {"params": params}, IMAGES).dtype == jnp.bfloat16


def test_dropout_acts_in_training_only():
    @functools.partial(jax.jit, static_argnames="train")
    def run(key, train):
        return make(dropout=0.5).apply({"params": params_of()}, IMAGES, train=train, rngs={"dropout": key})

    np.testing.assert_allclose(run(jax.random.key(1), train=False), logits(), rtol=1e-5, atol=1e-6)
    assert np.abs(run(jax.random.key(1), train=True) - logits()).max() > 1e-3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 3}, "heads=3 does not divide embed=16"),
        ({"patch": 0}, "patch of 1 or more, not 0"),
        ({"dropout": 1.0}, "dropout rate from 0 to below 1"),
    ],
)
def test_options_that_cannot_work_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


def test_a_patch_that_does_not_divide_the_image_is_refused():
    with pytest.raises(ValueError, match="patch=3 does not divide images of 8 x 4 pixels"):
        jax.eval_shape(make(patch=3).init, jax.random.key(0), IMAGES)
