"""A dense layer multiplies, adds, and names the dims of what it multiplies with."""

import jax
import numpy as np
from flax import linen as nn

from jaxtrain.config import Mesh, Sharding
from jaxtrain.layout import make_layout
from jaxtrain.models.dense import Dense
from jaxtrain.models.logical import laid_out
from jaxtrain.sharding import make_mesh
from tests.models.jaxprs import count

X = np.random.default_rng(0).normal(size=(2, 4, 5)).astype(np.float32)
LAYOUT = make_layout(make_mesh(Mesh(data=2, sequence=4)), Sharding())


def test_a_bias_starts_at_zero_and_adds_to_what_the_layer_gives():
    out, variables = Dense(4, bias=True).init_with_output(jax.random.key(0), X)
    np.testing.assert_array_equal(variables["params"]["bias"], 0)
    np.testing.assert_allclose(out, X @ variables["params"]["kernel"], rtol=1e-5, atol=1e-6)
    bias = np.arange(4, dtype=np.float32)
    moved = Dense(4, bias=True).apply({"params": {**variables["params"], "bias": bias}}, X)
    np.testing.assert_allclose(moved, out + bias, rtol=1e-6, atol=1e-6)


def test_names_are_those_of_its_dims_and_change_no_value():
    layer, bare = Dense(4, bias=True, names=("embed", "kv_heads"), count=2), Dense(4, bias=True)
    with laid_out(LAYOUT):
        boxes = layer.init(jax.random.key(0), X)["params"]
    assert (boxes["kernel"].names, boxes["bias"].names) == (("embed", "kv_heads"), ("kv_heads",))
    assert boxes["kernel"].sizes == boxes["bias"].sizes == (("kv_heads", 2),)
    for params in (nn.unbox(boxes), layer.init(jax.random.key(0), X)["params"]):
        jax.tree.map(np.testing.assert_array_equal, params, bare.init(jax.random.key(0), X)["params"])
    np.testing.assert_array_equal(layer.apply({"params": boxes}, X), bare.apply({"params": nn.unbox(boxes)}, X))


def test_batch_and_seq_are_one_dim_of_the_product_unless_seq_is_split():
    layer = Dense(4)
    params = layer.init(jax.random.key(0), X)
    assert count("reshape", lambda x: layer.apply(params, x), X) == 2
    with laid_out(LAYOUT):
        assert count("reshape", lambda x: layer.apply(params, x), X) == 0
        assert count("reshape", lambda x: layer.apply(params, x), X[:, :3]) == 2
