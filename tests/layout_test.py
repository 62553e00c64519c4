"""What names of dims stand for: the axes, which dims stay whole, and where a layout is in force."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxtrain.config import Mesh, Sharding
from jaxtrain.errors import ConfigError
from jaxtrain.layout import make_layout, spec_of
from jaxtrain.models.logical import constrain, in_force, laid_out
from jaxtrain.sharding import make_mesh


def layout_of(mesh=Mesh(data=1, fsdp=2, tensor=4), **logical_axes):  # noqa: B008  frozen
    return make_layout(make_mesh(mesh), Sharding(logical_axes=logical_axes))


@pytest.mark.parametrize(
    ("names", "shape", "axes"),
    [
        (("embed", "mlp"), (32, 48), ((), ("tensor",))),
        (("vocab", "embed"), (64, 32), (("tensor",), ())),
        (("batch", "seq", "heads", None), (8, 6, 4, 16), (("fsdp",), (), ("tensor",), ())),
        (("heads", "mlp"), (4, 8), (("tensor",), ())),  # an axis splits one dim of an array
        ((("kv_heads", "batch"), None), (16, 2), (("tensor", "fsdp"), ())),
        ((), (), ()),
    ],
)
def test_names_stand_for_the_axes_of_more_than_one_device(names, shape, axes):
    assert layout_of().fit(names, shape) == (axes, "")


def test_a_dim_that_is_not_divisible_stays_whole_and_says_so():
    layout = layout_of()
    assert layout.fit(("vocab", "embed"), (50257, 768)) == (((), ()), "vocab=50257 stays whole over tensor=4")
    kernel, heads = (32, 64), {"kv_heads": 2}
    assert layout.fit(("embed", "kv_heads"), kernel, heads) == (((), ()), "kv_heads=2 stays whole over tensor=4")
    assert layout.fit(("embed", "kv_heads"), kernel, {"kv_heads": 4}).axes == ((), ("tensor",))
    assert layout.splits("mlp", 8)
    assert not layout.splits("mlp", 6)
    assert not layout.splits("embed", 8)


def test_what_a_config_says_is_merged_over_the_default():
    layout = layout_of(embed="fsdp", mlp="", batch="-", other="fsdp + tensor")
    assert layout.fit(("embed", "mlp"), (32, 48)).axes == (("fsdp",), ())
    assert layout.fit(("heads", "batch"), (4, 8)).axes == (("tensor",), ())
    assert layout.fit(("other",), (8,)).axes == (("fsdp", "tensor"),)


def test_an_axis_that_there_is_not_is_refused():
    with pytest.raises(ConfigError, match=r"'model' is no axis of the mesh.* Axes are data, fsdp, sequence, tensor"):
        layout_of(mlp="model")


def test_activations_are_split_while_a_function_is_traced_and_not_by_one_device():
    mesh = make_mesh(Mesh(data=2, sequence=2, tensor=2))
    layout = make_layout(mesh, Sharding())

    def double(x):
        assert in_force() is layout
        return constrain(2 * x, "batch", "seq", "heads", None)

    x = jnp.ones((4, 6, 2, 3))
    split = jax.jit(layout.traced(double))(x)
    assert split.sharding == NamedSharding(mesh, PartitionSpec("data", "sequence", "tensor"))
    assert in_force() is None
    one = make_layout(make_mesh(Mesh(data=1), jax.devices()[:1]), Sharding())
    assert one.constrain(x, ("batch", "seq", "heads", None)) is x


def test_names_for_another_number_of_dims_are_an_error():
    with laid_out(layout_of()), pytest.raises(ValueError, match=r"2 names .* for the 3 dims"):
        constrain(jnp.ones((8, 8, 8)), "batch", "embed")


def test_a_spec_is_in_its_shortest_form():
    assert spec_of((("data", "fsdp"), (), ("tensor",), ())) == PartitionSpec(("data", "fsdp"), None, "tensor")
    assert spec_of(((), ())) == PartitionSpec()


def test_a_layout_can_leave_axes_out():
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(jax.sharding.AxisType.Auto,) * 3)
    layout = make_layout(mesh, Sharding())
    assert layout.fit(("batch", "mlp"), (8, 8)).axes == (("data", "fsdp"), ("tensor",))
    assert layout.without(("data", "fsdp")).fit(("batch", "mlp"), (8, 8)).axes == ((), ("tensor",))
