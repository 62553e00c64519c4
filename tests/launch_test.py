import signal
from pathlib import Path

import pytest

from jaxtrain.errors import RefusedError
from jaxtrain.launch import Group, environment, newest_step, root_cause, visible_gpus

# What real processes do is in tests/cluster/launch_test.py.


def group(num_processes=2, devices_per_process=0):
    return Group(["--config=c.py"], num_processes, devices_per_process, Path("w/logs"), Path("w/checkpoints"))


@pytest.mark.parametrize(
    ("codes", "cause"),
    [
        ([0, 0], 0),
        ([75, 75], 75),
        ([75, 1], 1),  # the one with a reason of its own, whoever ended first
        ([2, 75, 2], 2),
        ([-signal.SIGKILL, 75], 75),
        ([0, -signal.SIGABRT], 75),
        ([4, 3], 4),
        ([], 0),
    ],
)
def test_the_first_with_a_reason_of_its_own_is_the_cause(codes, cause):
    assert root_cause(codes) == cause


def test_each_process_is_told_which_one_it_is():
    told = [environment(group(3), index, 1234, {"HOME": "/h"}) for index in range(3)]
    assert [one["JAXTRAIN_PROCESS_ID"] for one in told] == ["0", "1", "2"]
    assert {(one["JAXTRAIN_NUM_PROCESSES"], one["JAXTRAIN_COORDINATOR"], one["HOME"]) for one in told} == {
        ("3", "127.0.0.1:1234", "/h")
    }
    assert all("XLA_FLAGS" not in one for one in told)


def test_devices_are_simulated_on_the_cpu_and_shared_out_of_the_gpus():
    environ = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=8 --xla_dump_to=/d"}
    flags = environment(group(2, 4), 1, 1, environ)["XLA_FLAGS"]
    assert flags == "--xla_dump_to=/d --xla_force_host_platform_device_count=4"
    gpus = {"CUDA_VISIBLE_DEVICES": "3,1,GPU-5,0"}
    assert [environment(group(2, 2), i, 1, gpus)["CUDA_VISIBLE_DEVICES"] for i in (0, 1)] == ["3,1", "GPU-5,0"]
    with pytest.raises(RefusedError, match="needs 6 GPUs, and there are 4"):
        environment(group(2, 3), 0, 1, gpus)


def test_gpus_are_those_of_the_driver_where_nothing_hides_them(tmp_path):
    for name in ("0000:17:00.0", "0000:65:00.0"):
        (tmp_path / name).mkdir()
    assert visible_gpus({}, tmp_path) == ["0", "1"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == []
    assert visible_gpus({}, tmp_path / "none") == []


def test_progress_is_a_committed_step(tmp_path):
    assert newest_step(tmp_path / "none") == -1
    for name, committed in {"3": True, "12": True, "15": False, "16.orbax-checkpoint-tmp": True}.items():
        (tmp_path / name).mkdir()
        if committed:
            (tmp_path / name / "manifest.json").write_text("{}")
    assert newest_step(tmp_path) == 12
