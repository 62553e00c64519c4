"""Transforms of images: what each may do, chance from the generator alone, and resizing as Pillow does it."""

import numpy as np
import PIL.Image
import pytest

from jaxtrain.data.augment import CenterCrop, Normalize, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, resize

IMAGE = np.arange(1, 6 * 8 * 3 + 1, dtype=np.uint8).reshape(6, 8, 3)
EXAMPLE = {"image": IMAGE, "label": np.int32(3)}
RANDOM = [RandomCrop(2), RandomCrop(1, size=5), RandomHorizontalFlip(), RandomResizedCrop(4)]


def rng(*seed):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("transform", RANDOM, ids=lambda transform: type(transform).__name__)
def test_chance_comes_from_the_generator_alone_and_the_example_is_left_as_it_was(transform):
    before = IMAGE.copy()
    outcomes = [transform.random_map(EXAMPLE, rng(1, position)) for position in range(20)]
    again = [transform.random_map(EXAMPLE, rng(1, position)) for position in range(20)]
    for one, other in zip(outcomes, again, strict=True):
        np.testing.assert_array_equal(one["image"], other["image"])
        assert one["label"] == 3
        assert one["image"].dtype == np.uint8
    assert len({outcome["image"].tobytes() for outcome in outcomes}) > 1
    np.testing.assert_array_equal(IMAGE, before)
    assert {outcome["image"].shape for outcome in outcomes} == {outcomes[0]["image"].shape}


def test_another_array_is_changed_where_its_key_is_given():
    example = {"image": IMAGE, "depth": IMAGE[..., :1]}
    flipped = RandomHorizontalFlip(1.0, key="depth").random_map(example, rng(0))
    np.testing.assert_array_equal(flipped["image"], IMAGE)
    np.testing.assert_array_equal(flipped["depth"], IMAGE[:, ::-1, :1])


def test_normalising_is_of_values_from_0_to_1():
    options = {"mean": (0.1, 0.2, 0.3), "std": (0.5, 1.0, 2.0)}
    expected = (IMAGE / 255 - options["mean"]) / options["std"]
    for image in (IMAGE, IMAGE / 255, (IMAGE / 255).astype(np.float32)):
        found = Normalize(**options).map({"image": image})["image"]
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    one = Normalize(mean=(0.5,), std=(0.5,)).map({"image": np.array([[[0, 255]]], np.uint8)})["image"]
    np.testing.assert_allclose(one.ravel(), [-1, 1], rtol=1e-6)


def test_a_shift_moves_the_image_by_up_to_its_padding_and_every_place_occurs():
    padded = np.pad(IMAGE, [(1, 1), (1, 1), (0, 0)])
    places = {padded[top : top + 6, left : left + 8].tobytes() for top in range(3) for left in range(3)}
    found = {RandomCrop(1).random_map(EXAMPLE, rng(0, i))["image"].tobytes() for i in range(200)}
    assert found == places


def test_a_crop_of_a_size_lies_in_the_padded_image():
    assert RandomCrop(0, size=4).random_map(EXAMPLE, rng(0))["image"].shape == (4, 4, 3)
    with pytest.raises(ValueError, match="size=9 is larger than the padded image"):
        RandomCrop(1, size=9).random_map(EXAMPLE, rng(0))


def test_flips_are_as_many_as_their_probability_says():
    flipped = [RandomHorizontalFlip(0.3).random_map(EXAMPLE, rng(0, i))["image"][0, 0, 0] != 1 for i in range(1000)]
    assert 250 < sum(flipped) < 350
    np.testing.assert_array_equal(RandomHorizontalFlip(0.0).random_map(EXAMPLE, rng(0))["image"], IMAGE)


def test_random_rectangles_lie_in_the_image_and_keep_their_ranges():
    transform = RandomResizedCrop(8, area=(0.2, 0.6), aspect=(0.5, 2.0))
    areas, aspects = [], []
    for position in range(300):
        top, left, height, width = transform._rectangle(200, 300, rng(position))
        assert top >= 0
        assert left >= 0
        assert top + height <= 200
        assert left + width <= 300
        areas.append(height * width / 60000)
        aspects.append(width / height)
    assert 0.19 < min(areas) < 0.22
    assert 0.55 < max(areas) < 0.61
    assert 0.49 < min(aspects) < 0.6
    assert 1.7 < max(aspects) < 2.05


@pytest.mark.parametrize("shape", [(1, 40), (40, 1), (1, 1)])
def test_an_image_too_long_for_any_rectangle_gives_its_middle(shape):
    transform = RandomResizedCrop(4, area=(1.0, 1.0), aspect=(0.9, 1.1))
    top, left, height, width = transform._rectangle(*shape, rng(0))
    assert (height, width) == (1, 1)
    assert abs(top - shape[0] // 2) <= 1
    assert abs(left - shape[1] // 2) <= 1


def test_what_is_cut_is_what_is_resized():
    whole = RandomResizedCrop(6, area=(1.0, 1.0), aspect=(8 / 6, 8 / 6)).random_map(EXAMPLE, rng(0))["image"]
    np.testing.assert_array_equal(whole, resize(IMAGE, 6, 6))


def test_the_centre_is_cut_after_the_shorter_side_is_resized():
    np.testing.assert_array_equal(CenterCrop(4).map(EXAMPLE)["image"], IMAGE[1:5, 2:6])
    np.testing.assert_array_equal(CenterCrop(2, resize=3).map(EXAMPLE)["image"], resize(IMAGE, 3, 4)[:2, 1:3])
    with pytest.raises(ValueError, match="size=7 is larger than the image, 6 x 8"):
        CenterCrop(7).map(EXAMPLE)


@pytest.mark.parametrize(
    ("old", "new"), [((50, 37), (24, 24)), ((7, 9), (20, 31)), ((16, 16), (16, 5)), ((9, 9), (1, 40))]
)
def test_resizing_is_what_pillow_does(old, new):
    image = np.random.default_rng(0).integers(0, 256, (*old, 3)).astype(np.uint8)
    wanted = np.asarray(PIL.Image.fromarray(image).resize(new[::-1], PIL.Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(resize(image, *new) - wanted).max() <= 1  # Pillow rounds between the two directions, too
    exact = resize(image.astype(np.float32), *new)
    assert exact.dtype == np.float32
    assert np.abs(exact - wanted).max() <= 1.1


def test_resizing_keeps_what_is_even_and_an_image_of_the_size_asked_for():
    np.testing.assert_array_equal(resize(np.full((9, 5, 1), 77, np.uint8), 4, 11), 77)
    np.testing.assert_array_equal(resize(IMAGE, 6, 8), IMAGE)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Normalize(std=(1.0, 0.0)), "above 0 as std"),
        (lambda: RandomCrop(-1), "padding and size of 0 or more"),
        (lambda: RandomHorizontalFlip(1.5), "probability from 0 to 1"),
        (lambda: RandomResizedCrop(0), "size of 1 or more"),
        (lambda: RandomResizedCrop(8, area=(0.5, 0.1)), "needs ranges"),
        (lambda: CenterCrop(8, resize=4), "up to resize"),
    ],
)
def test_options_that_cannot_work_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
