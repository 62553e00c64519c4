"""Residual networks with batch normalisation, for large photographs and for small images."""

import functools
from collections.abc import Sequence
from typing import Literal, get_args

import jax
import jax.numpy as jnp
from flax import nnx

Stem = Literal["imagenet", "small"]

_HE = nnx.initializers.variance_scaling(2.0, "fan_out", "normal")  # https://arxiv.org/abs/1502.01852, section 2.2


class ResNet(nnx.Module):
    """Stages of residual blocks, each stage with half the height and width and twice the channels of the one before.

    He et al. 2015 (https://arxiv.org/abs/1512.03385): ResNet-50 is stage_sizes (3, 4, 6, 3) with bottleneck, ResNet-18
    (2, 2, 2, 2) without. Strides are in the 3 x 3 convolutions, and the last scale of a block starts at 0, so that
    blocks start as the identity (Goyal et al. 2017, https://arxiv.org/abs/1706.02677, section 5.1). Activations have
    the dtype of the parameters; batch statistics are computed and kept in float32.

    stage_sizes: blocks in each stage.   num_classes: width of the output.
    width: channels of the first stage; with `bottleneck` its blocks give 4 times as many.
    bottleneck: blocks of 1 x 1, 3 x 3 and 1 x 1 convolutions instead of two 3 x 3.
    stem: "imagenet" divides height and width by 4 before the first stage, "small" keeps them.
    channels: those of the images.
    """

    def __init__(
        self,
        stage_sizes: Sequence[int],
        num_classes: int,
        width: int = 64,
        bottleneck: bool = True,
        stem: Stem = "imagenet",
        channels: int = 3,
        *,
        rngs: nnx.Rngs,
    ):
        if stem not in get_args(Stem):
            raise ValueError(f"ResNet has no stem={stem!r}. Use one of {', '.join(get_args(Stem))}.")
        if not stage_sizes or min(*stage_sizes, num_classes, width, channels) < 1:
            raise ValueError("ResNet needs one stage or more, and stage_sizes, num_classes, width, channels from 1 on.")
        self.pools = stem == "imagenet"
        self.stem = Convolution(channels, width, 7 if self.pools else 3, 2 if self.pools else 1, rngs=rngs)
        blocks, features = [], width
        for stage, num_blocks in enumerate(stage_sizes):
            for number in range(num_blocks):
                stride = 2 if stage > 0 and number == 0 else 1
                blocks.append(Block(features, width * 2**stage, stride, bottleneck, rngs=rngs))
                features = blocks[-1].features
        self.blocks = nnx.List(blocks)
        self.head = nnx.Linear(features, num_classes, kernel_init=nnx.initializers.normal(0.01), rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """images: [batch, height, width, channels] float. Returns logits [batch, num_classes]."""
        x = nnx.relu(self.stem(images.astype(self.head.kernel.dtype)))
        if self.pools:
            x = nnx.max_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)))
        for block in self.blocks:
            x = block(x)
        return self.head(jnp.mean(x, axis=(1, 2)))


class Block(nnx.Module):
    """relu(shortcut(x) + residual(x)); the shortcut is x, or a 1 x 1 convolution where the shape changes.

    in_features: channels of x.   width: channels inside.   features: channels of what it gives.
    """

    def __init__(self, in_features: int, width: int, stride: int, bottleneck: bool, *, rngs: nnx.Rngs):
        convolution = functools.partial(Convolution, rngs=rngs)
        self.features = 4 * width if bottleneck else width
        if bottleneck:
            convolutions = [
                convolution(in_features, width, 1),
                convolution(width, width, 3, stride),
                convolution(width, self.features, 1, scale=0.0),
            ]
        else:
            convolutions = [convolution(in_features, width, 3, stride), convolution(width, width, 3, scale=0.0)]
        self.convolutions = nnx.List(convolutions)
        changes = stride != 1 or in_features != self.features
        self.shortcut = convolution(in_features, self.features, 1, stride) if changes else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """x: [batch, height, width, in_features]. Returns [batch, height / stride, width / stride, features]."""
        residual = x
        for number, convolution in enumerate(self.convolutions):
            residual = convolution(nnx.relu(residual) if number else residual)
        return nnx.relu(residual + (x if self.shortcut is None else self.shortcut(x)))


class Convolution(nnx.Module):
    """A square convolution without bias, then batch normalisation. scale: what multiplies the normalised at first."""

    def __init__(
        self, in_features: int, features: int, size: int, stride: int = 1, scale: float = 1.0, *, rngs: nnx.Rngs
    ):
        self.convolution = nnx.Conv(
            in_features,
            features,
            (size, size),
            strides=stride,
            padding=size // 2,
            use_bias=False,
            kernel_init=_HE,
            rngs=rngs,
        )
        self.norm = nnx.BatchNorm(
            features, momentum=0.9, epsilon=1e-5, scale_init=nnx.initializers.constant(scale), rngs=rngs
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.convolution(x)
        return self.norm(x).astype(x.dtype)  # beside float32 statistics the result would be float32
