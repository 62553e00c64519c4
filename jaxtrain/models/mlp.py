"""A multi-layer perceptron."""

from collections.abc import Sequence

import flax.linen as nn
import jax


class MLP(nn.Module):
    """Dense layers with GELU and dropout between them.

    features: width of each hidden layer. num_outputs: width of the last one. dropout: rate after each hidden layer.
    """

    features: Sequence[int]
    num_outputs: int
    dropout: float = 0.0

    @nn.compact
    def __call__(self, inputs: jax.Array, train: bool = False) -> jax.Array:
        """inputs: [batch, ...], flattened behind the batch dim. Returns [batch, num_outputs]."""
        x = inputs.reshape(inputs.shape[0], -1)
        for width in self.features:
            x = nn.gelu(nn.Dense(width)(x))
            x = nn.Dropout(self.dropout, deterministic=not train)(x)
        return nn.Dense(self.num_outputs)(x)
