"""Rotary positions: what makes them relative, and in which precision."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxtrain.models.rotary import rotary_angles, rotate

SEQ, HEAD_DIM = 300, 16
ANGLES = rotary_angles(SEQ, HEAD_DIM, 10_000.0)


def everywhere(vector):
    """The same vector at each position: [1, seq, 1, head_dim]."""
    return jnp.broadcast_to(vector, (1, SEQ, 1, HEAD_DIM))


def test_the_product_of_two_rotated_vectors_depends_on_their_distance_only():
    query, key = jax.random.normal(jax.random.key(0), (2, HEAD_DIM))
    queries, keys = rotate(everywhere(query), ANGLES)[0, :, 0], rotate(everywhere(key), ANGLES)[0, :, 0]
    products = np.asarray(queries @ keys.T)
    for distance in (-200, -1, 0, 1, 7, 200):
        diagonal = np.diagonal(products, distance)
        np.testing.assert_allclose(diagonal, diagonal[0], atol=2e-4)
    assert abs(products[0, 1] - products[0, 7]) > 1e-2  # different distances give different products


def test_position_zero_is_not_turned_and_no_length_changes():
    x = jax.random.normal(jax.random.key(0), (2, SEQ, 3, HEAD_DIM))
    rotated = rotate(x, ANGLES)
    np.testing.assert_array_equal(rotated[:, 0], x[:, 0])
    np.testing.assert_allclose(jnp.linalg.norm(rotated, axis=-1), jnp.linalg.norm(x, axis=-1), rtol=1e-5)


def test_angles_follow_the_formula():
    expected = np.arange(SEQ)[:, None] * 10_000.0 ** (-2 * np.arange(HEAD_DIM // 2) / HEAD_DIM)
    np.testing.assert_allclose(ANGLES, expected, rtol=1e-5)


def test_bfloat16_vectors_are_turned_by_float32_angles():
    x = everywhere(jnp.ones(HEAD_DIM, jnp.bfloat16))
    rotated = rotate(x, ANGLES)
    assert rotated.dtype == jnp.bfloat16
    exact = rotate(x.astype(jnp.float32), ANGLES)
    np.testing.assert_array_equal(rotated, exact.astype(jnp.bfloat16))
    assert not np.array_equal(rotated[0, 256], rotated[0, 257])  # bfloat16 has no 257


def test_rows_may_be_turned_at_positions_of_their_own():
    x = jax.random.normal(jax.random.key(0), (2, SEQ, 3, HEAD_DIM))
    at = np.array([7, 250])
    alone = rotate(x[np.arange(2), at][:, None], ANGLES[at][:, None])
    np.testing.assert_array_equal(alone[:, 0], rotate(x, ANGLES)[np.arange(2), at])
