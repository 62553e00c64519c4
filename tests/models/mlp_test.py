"""The multi-layer perceptron."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxtrain.models.mlp import MLP

INPUTS = jax.random.normal(jax.random.key(0), (3, 4, 5))


def test_output_is_dense_layers_with_gelu_between_them():
    model = MLP((7,), 2)
    params = model.init(jax.random.key(1), INPUTS)
    first, last = params["params"]["Dense_0"], params["params"]["Dense_1"]
    hidden = jax.nn.gelu(INPUTS.reshape(3, 20) @ first["kernel"] + first["bias"])
    np.testing.assert_allclose(
        model.apply(params, INPUTS), hidden @ last["kernel"] + last["bias"], rtol=1e-5, atol=1e-6
    )


def test_dropout_acts_in_training_only():
    model = MLP((64,), 2, dropout=0.5)
    params = model.init(jax.random.key(1), INPUTS)
    np.testing.assert_array_equal(model.apply(params, INPUTS), MLP((64,), 2).apply(params, INPUTS))
    trained = model.apply(params, INPUTS, train=True, rngs={"dropout": jax.random.key(2)})
    assert not np.allclose(trained, model.apply(params, INPUTS))


def test_no_hidden_layer_is_a_linear_model():
    params = MLP((), 2).init(jax.random.key(1), INPUTS)["params"]
    assert jax.tree.map(jnp.shape, params) == {"Dense_0": {"kernel": (20, 2), "bias": (2,)}}
