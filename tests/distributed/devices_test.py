import pytest

from jaxtrain.distributed.devices import choose_devices, count_devices
from jaxtrain.errors import RefusedError


@pytest.mark.parametrize(
    ("local_index", "num_local", "num_devices", "chosen"),
    [
        (0, 1, 8, None),  # one for the node takes all
        (3, 8, 8, [3]),  # one for each GPU
        (1, 2, 8, [4, 5, 6, 7]),
        (5, 8, 1, None),  # given its own already
        (0, 2, 0, None),  # no GPU
    ],
)
def test_the_processes_of_a_node_share_its_devices_out(local_index, num_local, num_devices, chosen):
    assert choose_devices(local_index, num_local, {}, num_devices) == chosen


def test_together_they_take_every_device_once():
    taken = [device for index in range(4) for device in choose_devices(index, 4, {}, 8)]
    assert taken == list(range(8))


def test_what_cannot_be_shared_evenly_is_refused():
    with pytest.raises(RefusedError, match="3 processes on this node cannot share its 8 GPUs"):
        choose_devices(0, 3, {}, 8)
    assert choose_devices(0, 3, {"JAX_PLATFORMS": "cpu"}, 8) is None


def test_devices_are_counted_as_the_environment_shows_them(tmp_path):
    assert count_devices({"CUDA_VISIBLE_DEVICES": "2,5"}) == 2
    assert count_devices({"CUDA_VISIBLE_DEVICES": "-1"}) == 0
    assert count_devices({}, tmp_path / "none") == 0
    for name in ("0000:17:00.0", "0000:65:00.0"):
        (tmp_path / name).mkdir()
    assert count_devices({}, tmp_path) == 2
