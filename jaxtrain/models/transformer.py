"""A decoder-only transformer, from tokens to logits."""

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxtrain.models.attention import INPUT_NAMES, OUTPUT_NAMES, Implementation, attend, attend_cached
from jaxtrain.models.dense import Dense, by_rows
from jaxtrain.models.logical import constrain, named
from jaxtrain.models.rotary import rotary_angles, rotate

Norm = Literal["rmsnorm", "layernorm"]
Position = Literal["rotary", "learned"]
Activation = Literal["swiglu", "gelu"]
Remat = Literal["none", "full", "attention", "matmuls"]

_policies = jax.checkpoint_policies
# What the backward pass finds saved of each layer, beside its input; the rest it computes again.
REMAT_POLICIES: dict[Remat, Callable[..., Any]] = {
    "full": _policies.nothing_saveable,
    "attention": _policies.save_only_these_names(*INPUT_NAMES, *OUTPUT_NAMES),
    "matmuls": _policies.save_from_both_policies(
        _policies.dots_with_no_batch_dims_saveable, _policies.save_only_these_names(*OUTPUT_NAMES)
    ),
}


class Transformer(nn.Module):
    """A pre-norm decoder: GPT-2 with layernorm, learned, gelu and bias; Llama with rmsnorm, rotary and swiglu.

    Dims: batch, seq (positions), vocab, embed (the residual stream), heads, kv_heads, head_dim, mlp (hidden features).
    Dense layers have kernels [in, out]. Activations have the dtype of the parameters that are passed in;
    norm statistics, rotation and softmax are float32. Initial values are normal: standard deviation 1 / sqrt(in) for
    a kernel, divided by sqrt(2 num_layers) where it writes to the residual stream, so that the stream does not grow
    with depth (GPT-2, section 2.3); 1 / sqrt(embed) for embeddings, so that a tied head gives logits of variance 1.
    (With GPT-2's 0.02 a byte model of embed=128 took 200 steps to the loss it now reaches in 100.)

    For generation (generate.py): a pass with the collection "cache" mutable also leaves every layer's keys and values
    there, [batch, seq, kv_heads, head_dim]. A later pass with `positions` adds one token of each row and reads all.
    """

    vocab_size: int
    num_layers: int
    embed: int
    heads: int
    max_seq: int  # longest sequence accepted
    kv_heads: int = 0  # 0 = heads; fewer = grouped-query attention: heads / kv_heads queries share a key and a value
    head_dim: int = 0  # 0 = embed / heads
    mlp: int = 0  # 0 = 4 embed for gelu; for swiglu 8/3 embed (as many parameters), rounded up to a multiple of 64
    norm: Norm = "rmsnorm"
    position: Position = "rotary"
    rotary_base: float = 10_000.0  # larger = slower rotation, for longer sequences
    activation: Activation = "swiglu"
    bias: bool = False  # in the dense layers, but for the head
    tie_embeddings: bool = True  # the head is the transposed token embedding
    dropout: float = 0.0  # rate, on the embeddings and on what each half layer adds; not on attention weights
    scan_layers: bool = True  # one layer compiled, run in a loop; its parameters are stacked: [num_layers, ...]
    unroll: int = 1  # layers in one turn of that loop; more is faster to run and slower to compile
    remat: Remat = "none"  # which activations to compute again instead of keeping them: see REMAT_POLICIES
    attention: Implementation = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self)

    def setup(self) -> None:
        embedding_init = nn.initializers.normal(self.embed**-0.5)
        self.embedding = nn.Embed(self.vocab_size, self.embed, embedding_init=named(embedding_init, "vocab", "embed"))
        if self.position == "learned":
            self.positions = nn.Embed(self.max_seq, self.embed, embedding_init=named(embedding_init, None, "embed"))
        self.input_dropout = nn.Dropout(self.dropout)
        layer = self._layer()
        self.layers: Any = layer() if self.scan_layers else [layer() for _ in range(self.num_layers)]
        self.final_norm = NORMS[self.norm]()
        if not self.tie_embeddings:
            self.lm_head = Dense(self.vocab_size, names=("embed", "vocab"))

    def __call__(self, tokens: jax.Array, train: bool = False, positions: jax.Array | None = None) -> jax.Array:
        """tokens: [batch, seq] int. Returns logits [batch, seq, vocab]; those of a position see no later token.

        positions: [batch] int, where in the cache the one token of each row stands; None: tokens stand from 0 on.
        """
        return self.head(self.features(tokens, train, positions))

    def features(self, tokens: jax.Array, train: bool = False, positions: jax.Array | None = None) -> jax.Array:
        """tokens: [batch, seq] int. Returns what the head reads: [batch, seq, embed]."""
        seq = tokens.shape[1]
        if seq > self.max_seq:
            raise ValueError(f"A sequence of {seq} tokens is longer than the Transformer's max_seq={self.max_seq}.")
        x = self.embedding(constrain(tokens, "batch", "seq"))
        if self.position == "learned":
            table, angles = self.positions.embedding, None
            x = x + (table[:seq] if positions is None else table[positions][:, None])
        else:
            reach = seq if positions is None else self.max_seq
            angles = rotary_angles(reach, self.head_dim or self.embed // self.heads, self.rotary_base)
            angles = angles if positions is None else angles[positions][:, None]
        x = self.input_dropout(constrain(x, *STREAM), deterministic=not train)
        for layer in [self.layers] if self.scan_layers else self.layers:
            x, _ = layer(x, angles, train, positions)
        return self.final_norm(x)

    def head(self, features: jax.Array) -> jax.Array:
        """features: [batch, seq, embed]. Returns logits [batch, seq, vocab]."""
        product = by_rows(self.embedding.attend) if self.tie_embeddings else self.lm_head
        return constrain(product(features), "batch", "seq", "vocab")

    def _layer(self) -> Callable[..., nn.Module]:
        """Give what makes a layer, or with `scan_layers` all of them as one module."""
        output_variance = 1 / (2 * self.num_layers)
        head_dim, kv_heads = self.head_dim or self.embed // self.heads, self.kv_heads or self.heads
        mlp = self.mlp or (4 * self.embed if self.activation == "gelu" else 64 * math.ceil(8 * self.embed / 3 / 64))
        return functools.partial(
            repeated_layer(self.num_layers if self.scan_layers else 0, self.unroll, self.remat),
            norm=NORMS[self.norm],
            attention=functools.partial(
                Attention, self.heads, kv_heads, head_dim, self.attention, output_variance, self.bias
            ),
            mlp=functools.partial(FeedForward, mlp, self.activation, output_variance, self.bias),
            dropout=self.dropout,
        )


STREAM = ("batch", "seq", "embed")  # the dims of the residual stream
_SCALE = named(nn.initializers.ones_init(), "embed")
NORMS: dict[Norm, Callable[..., nn.Module]] = {
    "rmsnorm": functools.partial(nn.RMSNorm, epsilon=1e-5, scale_init=_SCALE),
    # The fast variance, E[x^2] - E[x]^2, cancels where the mean is large.
    "layernorm": functools.partial(
        nn.LayerNorm,
        epsilon=1e-5,
        use_fast_variance=False,
        scale_init=_SCALE,
        bias_init=named(nn.initializers.zeros_init(), "embed"),
    ),
}


def repeated_layer(num_scanned: int, unroll: int, remat: Remat) -> Any:
    """Give `Layer` with rematerialisation, and as one module of `num_scanned` layers in a loop unless that is 0."""
    layer: Any = Layer
    if remat != "none":
        # Only a loop between the passes keeps XLA from merging the second computation with the first.
        looped = unroll < num_scanned
        layer = nn.remat(layer, policy=REMAT_POLICIES[remat], prevent_cse=not looped, static_argnums=(3,))
    if num_scanned:
        layer = nn.scan(
            layer,
            variable_axes={"params": 0, "cache": 0},
            split_rngs={"params": True, "dropout": True},
            in_axes=(nn.broadcast, nn.broadcast, nn.broadcast),
            length=num_scanned,
            unroll=unroll,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )
    return layer


class Layer(nn.Module):
    """Attention, then the feed-forward half; each reads the normed residual stream and adds to it."""

    norm: Callable[..., nn.Module]
    attention: Callable[..., nn.Module]
    mlp: Callable[..., nn.Module]
    dropout: float

    @nn.compact
    def __call__(
        self, x: jax.Array, angles: jax.Array | None, train: bool, positions: jax.Array | None
    ) -> tuple[jax.Array, None]:
        """x: [batch, seq, embed]. angles: [seq, head_dim / 2]. Returns the next x, as the carry of a scan."""
        dropout = functools.partial(nn.Dropout(self.dropout), deterministic=not train)
        x = x + dropout(self.attention(name="attention")(self.norm(name="attention_norm")(x), angles, positions))
        x = x + dropout(self.mlp(name="mlp")(self.norm(name="mlp_norm")(x)))
        return x, None


class Attention(nn.Module):
    """Self-attention with grouped key and value heads; rotates queries and keys if angles are given.

    With `positions` it attends to the cached keys and values, to which it adds its own.
    """

    heads: int
    kv_heads: int
    head_dim: int
    implementation: Implementation
    output_variance: float
    bias: bool
    causal: bool = True

    @nn.compact
    def __call__(self, x: jax.Array, angles: jax.Array | None, positions: jax.Array | None) -> jax.Array:
        def project(name: str, dim: str, heads: int) -> jax.Array:
            dense = Dense(heads * self.head_dim, bias=self.bias, names=("embed", dim), count=heads, name=name)
            return dense(x).reshape(*x.shape[:2], heads, self.head_dim)

        query = project("query", "heads", self.heads)
        key, value = (project(name, "kv_heads", self.kv_heads) for name in ("key", "value"))
        if angles is not None:
            query, key = rotate(query, angles), rotate(key, angles)
        if self.is_initializing():  # with the float32 parameters that are being made, which cuDNN refuses
            mixed = jax.nn.dot_product_attention(query, key, value, is_causal=self.causal)
        elif positions is None:
            mixed = attend(query, key, value, self.implementation, causal=self.causal)
        else:
            rows = jnp.arange(x.shape[0])
            key = self.get_variable("cache", "key").at[rows, positions].set(key[:, 0])
            value = self.get_variable("cache", "value").at[rows, positions].set(value[:, 0])
            mixed = attend_cached(query, key, value, positions)
        if self.is_mutable_collection("cache") and not self.is_initializing():
            self.put_variable("cache", "key", key)
            self.put_variable("cache", "value", value)
        out = Dense(x.shape[-1], self.output_variance, self.bias, ("heads", "embed"), self.heads, name="out")
        return constrain(out(mixed.reshape(*x.shape[:2], -1)), *STREAM)


class FeedForward(nn.Module):
    """Two dense layers around GELU, or three as SwiGLU: down(silu(gate) * up) (https://arxiv.org/abs/2002.05202)."""

    mlp: int
    activation: Activation
    output_variance: float
    bias: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        def widen(name: str) -> jax.Array:
            return constrain(
                Dense(self.mlp, bias=self.bias, names=("embed", "mlp"), name=name)(x), "batch", "seq", "mlp"
            )

        hidden = widen("up")
        hidden = hidden * nn.silu(widen("gate")) if self.activation == "swiglu" else nn.gelu(hidden)
        down = Dense(x.shape[-1], self.output_variance, self.bias, ("mlp", "embed"), name="down")
        return constrain(down(hidden), *STREAM)


def _check(model: Transformer) -> None:
    """Raise ValueError for options that cannot work, before anything is traced."""
    named = {"norm": Norm, "position": Position, "activation": Activation, "remat": Remat, "attention": Implementation}
    for option, names in named.items():
        if (value := getattr(model, option)) not in get_args(names):
            raise ValueError(f"Transformer has no {option}={value!r}. Use one of {', '.join(get_args(names))}.")
    for option in ("vocab_size", "num_layers", "embed", "heads", "max_seq", "unroll"):
        if (value := getattr(model, option)) < 1:
            raise ValueError(f"Transformer needs {option} of 1 or more, not {value}.")
    for option in ("kv_heads", "head_dim", "mlp"):
        if (value := getattr(model, option)) < 0:
            raise ValueError(f"Transformer needs {option} of 1 or more, or 0 for its default, not {value}.")
    if model.kv_heads and model.heads % model.kv_heads:
        raise ValueError(f"Transformer: kv_heads={model.kv_heads} does not divide heads={model.heads}.")
    if not model.head_dim and model.embed % model.heads:
        raise ValueError(f"Transformer: heads={model.heads} does not divide embed={model.embed}; else give head_dim.")
    if model.position == "rotary" and (model.head_dim or model.embed // model.heads) % 2:
        raise ValueError("Transformer: rotary positions turn pairs of features and need an even head_dim.")
    if not 0 <= model.dropout < 1:
        raise ValueError(f"Transformer needs a dropout rate from 0 to below 1, not {model.dropout}.")
