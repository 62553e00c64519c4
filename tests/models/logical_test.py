"""Names of dims: without a layout they mean nothing, with one they reach it, and a box carries them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jaxtrain.models.logical import Named, constrain, in_force, is_split, laid_out, named


class Doubling:
    """A layout that shows itself in the numbers."""

    def constrain(self, x, names):
        return 2 * x if names == ("batch", None) else x

    def splits(self, name, size):
        return name == "seq" and size % 2 == 0


def test_only_inside_a_layout_do_names_mean_something():
    x = jnp.ones((2, 3))
    assert constrain(x, "batch", None) is x
    assert not is_split("seq", 4)
    with laid_out(Doubling()) as _:
        np.testing.assert_array_equal(constrain(x, "batch", None), 2)
        assert (is_split("seq", 4), is_split("seq", 3)) == (True, False)
        with laid_out(None):
            assert constrain(x, "batch", None) is x
    assert in_force() is None


def test_a_layout_is_no_longer_in_force_after_an_error():
    with pytest.raises(KeyError), laid_out(Doubling()):
        raise KeyError
    assert in_force() is None


def test_a_box_is_one_of_flax_and_a_scan_over_layers_names_the_dim_that_it_adds():
    init = named(nn.initializers.ones_init(), "embed", "heads", heads=2)
    with laid_out(Doubling()):
        box = init(jax.random.key(0), (4, 8))
        assert isinstance(named(init, None, None)(jax.random.key(0), (4, 8)), Named)  # by `init` alone
    assert isinstance(box, nn.LogicallyPartitioned)
    assert (box.names, box.sizes, box.unbox().shape) == (("embed", "heads"), (("heads", 2),), (4, 8))
    stacked = box.add_axis(0, {nn.PARTITION_NAME: "layers"})
    assert (stacked.names, stacked.sizes) == (("layers", "embed", "heads"), (("heads", 2),))


def test_without_a_layout_parameters_are_plain_arrays():
    init = named(nn.initializers.ones_init(), "embed", "heads")
    assert isinstance(init(jax.random.key(0), (4, 8)), jax.Array)
