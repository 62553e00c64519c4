"""A multi-layer perceptron."""

from collections.abc import Sequence

import flax.linen as nn
import jax

from jaxtrain.models.logical import constrain, named

_KERNEL, _BIAS = nn.linear.default_kernel_init, nn.initializers.zeros_init()


class MLP(nn.Module):
    """Dense layers with GELU and dropout between them.

    features: width of each hidden layer. num_outputs: width of the last one. dropout: rate after each hidden layer.
    The dims of kernels are named "embed", "mlp" and "mlp", "embed" by turns: of two layers, the first may be split by
    its outputs and the second by its inputs, and only what the second gives is a sum over devices.
    """

    features: Sequence[int]
    num_outputs: int
    dropout: float = 0.0

    @nn.compact
    def __call__(self, inputs: jax.Array, train: bool = False) -> jax.Array:
        """inputs: [batch, ...], flattened behind the batch dim. Returns [batch, num_outputs]."""
        x = inputs.reshape(inputs.shape[0], -1)
        for number, width in enumerate((*self.features, self.num_outputs)):
            last = number == len(self.features)
            names = ("mlp", "embed") if number % 2 else ("embed", "classes" if last else "mlp")
            dense = nn.Dense(width, kernel_init=named(_KERNEL, *names), bias_init=named(_BIAS, names[1]))
            x = constrain(dense(x), "batch", names[1])
            if not last:
                x = nn.Dropout(self.dropout, deterministic=not train)(nn.gelu(x))
        return x
