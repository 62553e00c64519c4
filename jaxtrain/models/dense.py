"""The dense layer of the transformers, which names the dims of its parameters."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxtrain.models.logical import is_split, named


class Dense(nn.Module):
    """x @ kernel, plus a bias if asked for. kernel: [in, features], normal with variance `variance` / in.

    names: of the kernel's two dims.   count: how many heads the dim of them holds, which must not be cut.
    """

    features: int
    variance: float = 1.0
    bias: bool = False
    names: tuple[str | None, str | None] = (None, None)
    count: int = 0

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        init = nn.initializers.variance_scaling(self.variance, "fan_in", "normal")
        sizes = {name: self.count for name in self.names if name in ("heads", "kv_heads")}
        kernel = self.param("kernel", named(init, *self.names, **sizes), (x.shape[-1], self.features))
        out = by_rows(lambda x: jnp.matmul(x, kernel))(x)
        if not self.bias:
            return out
        bias_init = named(nn.initializers.zeros_init(), self.names[1], **sizes)
        return out + self.param("bias", bias_init, (self.features,))


def by_rows(product: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    """Give a matrix product of [rows, in] for arrays [batch, seq, in].

    The gradient of the kernel sums over batch and seq. As two dims, XLA:CPU would transpose both factors first, which
    costs as much as the product; other backends do not mind. Where seq is split, both dims as one could not be.
    """

    def multiply(x: jax.Array) -> jax.Array:
        if x.ndim != 3 or is_split("seq", x.shape[1]):
            return product(x)
        return product(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:-1], -1)

    return multiply
