"""Transforms of images: `map(example)`, or `random_map(example, rng)` where chance decides, from `rng` alone.

Each changes example[key], [height, width, channels], and gives a new example; the rest of it stays.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Example = dict[str, Any]
# The mean and standard deviation of ImageNet's training images, by channel, of pixels from 0 to 1.
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclasses.dataclass(frozen=True)
class Normalize:
    """(image - mean) / std as float32. A uint8 image is divided by 255 first.

    mean, std: one number for each channel, or one for all.
    """

    mean: Sequence[float] = IMAGENET_MEAN
    std: Sequence[float] = IMAGENET_STD
    key: str = "image"

    def __post_init__(self) -> None:
        if min(self.std, default=0) <= 0:
            raise ValueError(f"Normalize needs numbers above 0 as std, not {tuple(self.std)}.")

    def map(self, example: Example) -> Example:
        image = example[self.key]
        scale = 255.0 if image.dtype == np.uint8 else 1.0
        mean, std = np.asarray(self.mean, np.float32) * np.float32(scale), np.asarray(self.std, np.float32)
        return {**example, self.key: (image.astype(np.float32) - mean) / (std * np.float32(scale))}


@dataclasses.dataclass(frozen=True)
class RandomCrop:
    """Cut a square, or an image of the size that it had, at a random place out of the image padded with zeros.

    padding: pixels added on each side.   size: pixels along each side of what is cut; 0 keeps height and width, so
    that the image is shifted by up to `padding` pixels.
    """

    padding: int
    size: int = 0
    key: str = "image"

    def __post_init__(self) -> None:
        if self.padding < 0 or self.size < 0:
            raise ValueError(f"RandomCrop needs padding and size of 0 or more, not {self.padding} and {self.size}.")

    def random_map(self, example: Example, rng: np.random.Generator) -> Example:
        image = example[self.key]
        height, width = (self.size or image.shape[0]), (self.size or image.shape[1])
        padded = np.pad(image, [(self.padding, self.padding)] * 2 + [(0, 0)])
        if height > padded.shape[0] or width > padded.shape[1]:
            raise ValueError(f"RandomCrop: size={self.size} is larger than the padded image, {padded.shape[:2]}.")
        top = rng.integers(padded.shape[0] - height + 1)
        left = rng.integers(padded.shape[1] - width + 1)
        return {**example, self.key: padded[top : top + height, left : left + width]}


@dataclasses.dataclass(frozen=True)
class RandomHorizontalFlip:
    """Mirror left and right with a probability."""

    probability: float = 0.5
    key: str = "image"

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise ValueError(f"RandomHorizontalFlip needs a probability from 0 to 1, not {self.probability}.")

    def random_map(self, example: Example, rng: np.random.Generator) -> Example:
        return {**example, self.key: example[self.key][:, ::-1]} if rng.random() < self.probability else example


@dataclasses.dataclass(frozen=True)
class RandomResizedCrop:
    """Cut a rectangle of random area, aspect ratio and place, and resize it to a square.

    Szegedy et al. 2014 (https://arxiv.org/abs/1409.4842), section 6. Ten rectangles are tried; if none lies in the
    image, the largest central one of an allowed aspect is taken.

    size: pixels along each side of the result.   area: range of the share of the image.   aspect: range of width /
    height, drawn evenly on a logarithmic scale.
    """

    size: int
    area: tuple[float, float] = (0.08, 1.0)
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    key: str = "image"

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"RandomResizedCrop needs a size of 1 or more, not {self.size}.")
        if not 0 < self.area[0] <= self.area[1] <= 1 or not 0 < self.aspect[0] <= self.aspect[1]:
            raise ValueError(f"RandomResizedCrop needs ranges (low, high): area={self.area}, aspect={self.aspect}.")

    def random_map(self, example: Example, rng: np.random.Generator) -> Example:
        image = example[self.key]
        top, left, height, width = self._rectangle(image.shape[0], image.shape[1], rng)
        cut = image[top : top + height, left : left + width]
        return {**example, self.key: resize(cut, self.size, self.size)}

    def _rectangle(self, height: int, width: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
        for _ in range(10):
            pixels = rng.uniform(*self.area) * height * width
            ratio = math.exp(rng.uniform(math.log(self.aspect[0]), math.log(self.aspect[1])))
            cut_width, cut_height = round(math.sqrt(pixels * ratio)), round(math.sqrt(pixels / ratio))
            if 0 < cut_width <= width and 0 < cut_height <= height:
                top, left = rng.integers(height - cut_height + 1), rng.integers(width - cut_width + 1)
                return int(top), int(left), cut_height, cut_width
        ratio = min(max(width / height, self.aspect[0]), self.aspect[1])
        cut_width, cut_height = min(width, round(height * ratio)), min(height, round(width / ratio))
        return (height - cut_height) // 2, (width - cut_width) // 2, max(1, cut_height), max(1, cut_width)


@dataclasses.dataclass(frozen=True)
class CenterCrop:
    """Cut a square out of the middle, after resizing the shorter side.

    size: pixels along each side of the result.   resize: pixels of the shorter side before; 0 does not resize.
    """

    size: int
    resize: int = 0
    key: str = "image"

    def __post_init__(self) -> None:
        if self.size < 1 or (self.resize and self.resize < self.size):
            raise ValueError(f"CenterCrop needs a size of 1 or more and up to resize, not {self.size}, {self.resize}.")

    def map(self, example: Example) -> Example:
        image = example[self.key]
        height, width = image.shape[:2]
        if self.resize:
            factor = self.resize / min(height, width)
            height, width = round(height * factor), round(width * factor)
            image = resize(image, height, width)
        if min(height, width) < self.size:
            raise ValueError(f"CenterCrop: size={self.size} is larger than the image, {height} x {width}. Use resize.")
        top, left = (height - self.size) // 2, (width - self.size) // 2
        return {**example, self.key: image[top : top + self.size, left : left + self.size]}


def resize(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resize [height, width, channels] with a triangle filter that is widened for shrinking, so that nothing aliases.

    uint8 is rounded to uint8, other dtypes give float32. Pillow's `Image.resize(size, BILINEAR)` computes the same.
    """
    resized = _resize_rows(image, height)
    resized = _resize_rows(resized.swapaxes(0, 1), width).swapaxes(0, 1)
    return np.clip(np.rint(resized), 0, 255).astype(np.uint8) if image.dtype == np.uint8 else resized


def _resize_rows(image: np.ndarray, num_rows: int) -> np.ndarray:
    """[rows, ...] -> [num_rows, ...] float32"""
    if len(image) == num_rows:
        return image.astype(np.float32)
    rows, weights = _taps(len(image), num_rows)
    flat = image.reshape(len(image), -1).astype(np.float32)
    total = np.zeros((num_rows, flat.shape[1]), np.float32)
    for tap in range(rows.shape[1]):
        total += weights[:, tap, None] * flat[rows[:, tap]]
    return total.reshape(num_rows, *image.shape[1:])


@functools.lru_cache(maxsize=256)
def _taps(old: int, new: int) -> tuple[np.ndarray, np.ndarray]:
    """Give the rows that each new row is made of, and their weights: [new, taps] int64 and float32."""
    scale = max(1.0, old / new)
    centres = (np.arange(new) + 0.5) * old / new
    first = np.floor(centres - scale + 0.5).astype(np.int64)
    rows = first[:, None] + np.arange(math.ceil(2 * scale) + 1)
    weights = np.maximum(0.0, 1 - np.abs(rows + 0.5 - centres[:, None]) / scale) * ((rows >= 0) & (rows < old))
    weights /= weights.sum(axis=1, keepdims=True)
    return np.clip(rows, 0, old - 1), weights.astype(np.float32)
