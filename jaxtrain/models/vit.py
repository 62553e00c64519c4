"""The vision transformer: an image as a sequence of patches, read by a transformer without a causal mask."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxtrain.models.attention import Implementation
from jaxtrain.models.dense import Dense
from jaxtrain.models.logical import constrain, named
from jaxtrain.models.transformer import STREAM, Attention, FeedForward, Remat, repeated_layer


class ViT(nn.Module):
    """A pre-norm encoder over patches with a class token (Dosovitskiy et al. 2020, https://arxiv.org/abs/2010.11929).

    Dims: batch, height, width, channels, seq (1 + patches), embed, heads, mlp. The layers are those of the Transformer,
    with biases, LayerNorm and GELU; so are dtypes and initial values, but for the class token and the head, which
    start at zero. Images of another size need other positions.
    """

    num_classes: int
    patch: int  # pixels along each side of a patch; divides height and width
    num_layers: int
    embed: int
    heads: int
    mlp: int = 0  # 0 = 4 embed
    dropout: float = 0.0  # rate, on the embeddings and on what each half layer adds; not on attention weights
    scan_layers: bool = True  # one layer compiled, run in a loop; its parameters are stacked: [num_layers, ...]
    unroll: int = 1  # layers in one turn of that loop; more is faster to run and slower to compile
    remat: Remat = "none"  # which activations to compute again: see REMAT_POLICIES of the Transformer
    attention: Implementation = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        for option in ("num_classes", "patch", "num_layers", "embed", "heads", "unroll"):
            if (value := getattr(self, option)) < 1:
                raise ValueError(f"ViT needs {option} of 1 or more, not {value}.")
        if self.embed % self.heads:
            raise ValueError(f"ViT: heads={self.heads} does not divide embed={self.embed}.")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"ViT needs a dropout rate from 0 to below 1, not {self.dropout}.")

    @nn.compact
    def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
        """images: [batch, height, width, channels] float. Returns logits [batch, num_classes]."""
        patches = _patches(images, self.patch)
        batch, num_patches, _ = patches.shape
        token = self.param("token", _ZEROS, (self.embed,))
        init = named(nn.initializers.normal(self.embed**-0.5), None, "embed")
        positions = self.param("positions", init, (1 + num_patches, self.embed))
        x = Dense(self.embed, bias=True, names=(None, "embed"), name="embedding")(patches.astype(token.dtype))
        x = jnp.concatenate([jnp.broadcast_to(token, (batch, 1, self.embed)), x], axis=1) + positions
        x = constrain(x, *STREAM)
        x = nn.Dropout(self.dropout, deterministic=not train)(x)
        for layer in self._layers():
            x, _ = layer(x, None, train, None)
        x = _NORM(name="final_norm")(x[:, 0])
        head_init = named(nn.initializers.zeros_init(), "embed", "classes")
        return nn.Dense(self.num_classes, kernel_init=head_init, name="head")(x)

    def _layers(self) -> list[Any]:
        """Give the layers one by one, or with `scan_layers` one module that is all of them."""
        output_variance = 1 / (2 * self.num_layers)
        head_dim = self.embed // self.heads
        layer = functools.partial(
            repeated_layer(self.num_layers if self.scan_layers else 0, self.unroll, self.remat),
            norm=_NORM,
            attention=functools.partial(
                Attention, self.heads, self.heads, head_dim, self.attention, output_variance, bias=True, causal=False
            ),
            mlp=functools.partial(FeedForward, self.mlp or 4 * self.embed, "gelu", output_variance, bias=True),
            dropout=self.dropout,
        )
        names = ["layers"] if self.scan_layers else [f"layers_{number}" for number in range(self.num_layers)]
        return [layer(name=name) for name in names]


_ZEROS = named(nn.initializers.zeros_init(), "embed")
_SCALE = named(nn.initializers.ones_init(), "embed")
_NORM = functools.partial(nn.LayerNorm, epsilon=1e-6, use_fast_variance=False, scale_init=_SCALE, bias_init=_ZEROS)


def _patches(images: jax.Array, patch: int) -> jax.Array:
    """[batch, height, width, channels] -> [batch, patches, patch * patch * channels], row by row."""
    batch, height, width, channels = images.shape
    if height % patch or width % patch:
        raise ValueError(f"ViT: patch={patch} does not divide images of {height} x {width} pixels.")
    tiles = images.reshape(batch, height // patch, patch, width // patch, patch, channels)
    return tiles.swapaxes(2, 3).reshape(batch, -1, patch * patch * channels)
