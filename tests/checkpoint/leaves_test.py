import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxtrain.checkpoint import leaves
from jaxtrain.errors import CheckpointError

KEYS = st.text(alphabet="ab./~ [']", max_size=3)
TREES = st.recursive(
    st.sampled_from([None, 1.0]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(TREES)
@example({"a/b": 1.0, "a": {"b": 1.0}})
@example({"a.b": 1.0, "a": {"b": 1.0}})
@settings(max_examples=200, deadline=None)
def test_every_leaf_keeps_a_name_of_its_own_whatever_the_keys(tree):
    counter = iter(range(100))
    numbered = jax.tree.map(lambda _: next(counter), tree)
    assert list(leaves.named(numbered).values()) == jax.tree.leaves(numbered)


def test_orbax_itself_overwrites_one_array_with_another_when_a_key_holds_a_dot(tmp_path):
    tree = {"a.b": jnp.ones(2), "a": {"b": jnp.full(2, 7.0)}}
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "x", tree)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "x", tree)
    assert not all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(restored), jax.tree.leaves(tree), strict=True))


def test_names_read_like_paths():
    state = {"params": {"dense": {"kernel": 1}}, "opt_state": optax.adam(1e-3).init({"w": 1.0})}
    names = ["opt_state/0/count", "opt_state/0/mu/w", "opt_state/0/nu/w", "params/dense/kernel"]
    assert list(leaves.named(state)) == names


def test_bytes_count_keys_and_half_precision():
    tree = {"a": jnp.zeros((3, 4), jnp.bfloat16), "b": jax.random.split(jax.random.key(0), 5), "c": jnp.zeros((0,))}
    assert leaves.num_bytes(leaves.named(tree)) == 3 * 4 * 2 + 5 * 8


def test_a_mismatch_names_each_leaf_with_saved_and_wanted():
    def describe(**arrays):
        return leaves.describe(arrays)

    saved = describe(a=jnp.zeros((2, 3)), b=jnp.zeros(4, jnp.int32), c=jnp.zeros(1), key=jax.random.key(0))
    wanted = describe(
        a=jnp.zeros((3, 2)), b=jnp.zeros(4), d=jnp.zeros((), jnp.bfloat16), key=jax.random.key(0, impl="rbg")
    )
    with pytest.raises(CheckpointError) as caught:
        leaves.check_same(saved, wanted, "Checkpoint X")
    for line in (
        "Checkpoint X",
        "  a: saved float32[2, 3], wanted float32[3, 2]\n",
        "  b: saved int32[4], wanted float32[4]\n",
        "  c: saved float32[1], wanted nothing\n",
        "  d: saved nothing, wanted bfloat16[]\n",
        "  key: saved key<fry>[], wanted key<rbg>[]\n",
    ):
        assert line in str(caught.value)


def test_a_message_about_thousands_of_leaves_stays_readable():
    wanted = leaves.describe({f"layer_{i}": jnp.zeros(1) for i in range(1000)})
    with pytest.raises(CheckpointError, match="and 980 more"):
        leaves.check_same({}, wanted, "Checkpoint X")


def test_equal_leaves_pass_in_any_order():
    a, b = jnp.zeros(1), jnp.zeros(2)
    leaves.check_same(leaves.describe({"a": a, "b": b}), leaves.describe({"b": b, "a": a}), "Checkpoint X")
