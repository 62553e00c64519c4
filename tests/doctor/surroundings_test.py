import time

import pytest

from jaxtrain.doctor import surroundings
from jaxtrain.doctor.machine import Machine


@pytest.fixture
def library_path(tmp_path):
    for name in ("cuda", "mine"):
        (tmp_path / name).mkdir()
    for name in ("libcudnn.so.8", "libcudart.so.11.0", "libcublasLt.so.11", "libm.so.6"):
        (tmp_path / "cuda" / name).touch()
    (tmp_path / "mine" / "libcudgel.so").touch()
    (tmp_path / "mine" / "libcuda.so.1").touch()  # of the driver, which pip does not install
    return tmp_path


def test_libraries_that_override_those_of_pip_are_named(library_path):
    value = f"{library_path / 'mine'}:{library_path / 'cuda'}:{library_path / 'gone'}:"
    found = surroundings.judge_library_path(value, has_pip_cuda=True)
    assert found.status == "warn"
    assert f"{library_path / 'cuda'} has libcublasLt.so, libcudart.so, libcudnn.so" in found.found
    assert str(library_path / "mine") not in found.found
    assert surroundings.judge_library_path(value, has_pip_cuda=False).status == "ok"
    assert surroundings.judge_library_path(str(library_path / "mine"), has_pip_cuda=True).status == "ok"
    assert surroundings.judge_library_path("", has_pip_cuda=True).status == "ok"


@pytest.mark.parametrize(
    ("environ", "num_gpus", "words"),
    [
        ({"JAX_PLATFORMS": "cpu"}, 8, "JAX_PLATFORMS=cpu: the GPUs are not used"),
        ({"JAX_DISABLE_JIT": "true"}, 0, "nothing is compiled"),
        ({"JAX_ENABLE_X64": "1"}, 0, "64-bit"),
        ({"JAX_DEBUG_NANS": "True"}, 0, "every step waits"),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, 1, "every kernel"),
        ({"CUDA_VISIBLE_DEVICES": ""}, 1, "all GPUs are hidden"),
        ({"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}, 1, "every allocation"),
        ({"XLA_FLAGS": "--xla_a=1 --xla_b --xla_a=2"}, 1, "gives --xla_a more than once"),
        ({"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}, 1, "for tests on the CPU"),
    ],
)
def test_variables_that_hurt(environ, num_gpus, words):
    found = surroundings.judge_variables(environ, num_gpus=num_gpus)
    assert (found.status, words in found.found) == ("warn", True)
    assert found.advice == f"unset {next(iter(environ))}"


@pytest.mark.parametrize(
    ("environ", "num_gpus"),
    [
        ({}, 8),
        ({"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}, 0),
        ({"JAX_PLATFORMS": "cuda,cpu"}, 8),
        ({"CUDA_VISIBLE_DEVICES": "", "CUDA_LAUNCH_BLOCKING": "1"}, 0),
        ({"JAX_DISABLE_JIT": "0", "CUDA_LAUNCH_BLOCKING": "0", "CUDA_VISIBLE_DEVICES": "0,1"}, 2),
    ],
)
def test_variables_that_do_not_hurt(environ, num_gpus):
    assert surroundings.judge_variables(environ, num_gpus=num_gpus).status == "ok"


@pytest.mark.parametrize(
    ("environ", "status", "words"),
    [
        ({}, "ok", "no NCCL_ variable"),
        ({"NCCL_SOCKET_IFNAME": "eth"}, "ok", "NCCL_SOCKET_IFNAME=eth"),
        ({"NCCL_SOCKET_IFNAME": "=eth"}, "fail", "no interface here (eth0, lo)"),
        ({"NCCL_SOCKET_IFNAME": "^docker0"}, "ok", "^docker0"),
        ({"NCCL_SOCKET_IFNAME": "ib0"}, "fail", "NCCL_SOCKET_IFNAME=ib0 is no interface here"),
        ({"NCCL_P2P_DISABLE": "1"}, "warn", "through the host's memory"),
        ({"NCCL_P2P_DISABLE": "0"}, "ok", "NCCL_P2P_DISABLE=0"),
        ({"NCCL_DEBUG": "INFO"}, "warn", "NCCL_DEBUG=INFO"),
    ],
)
def test_variables_of_nccl(environ, status, words):
    found = surroundings.judge_nccl(environ, {"eth0", "lo"})
    assert (found.status, words in found.found) == (status, True)


@pytest.mark.parametrize(("num", "status"), [(64, "fail"), (1024, "warn"), (4096, "ok"), (-1, "ok")])
def test_open_files(num, status):
    assert surroundings.judge_limits(num).status == status


def test_shared_memory(tmp_path):
    from tests import mounts

    with mounts.small_disk(tmp_path / "shm", "64m") as shm:  # what a container gets unless it is told otherwise
        assert surroundings.judge_shm(shm, needs=True).status == "warn"
        assert surroundings.judge_shm(shm, needs=False).status == "ok"
        assert surroundings.judge_shm(shm, needs=True).found.startswith("64 MiB, 64 MiB free")
    assert surroundings.judge_shm(tmp_path / "gone", needs=True).status == "warn"
    assert surroundings.judge_shm(tmp_path / "gone", needs=False).status == "n/a"


NOW = 1_800_000_000.0  # 2027-01-15


@pytest.mark.parametrize(
    ("before", "after", "secs", "written", "status", "words"),
    [
        (NOW, NOW + 0.1, 0.1, NOW + 0.05, "ok", "2027-01-15 08:00:00 UTC"),
        (NOW, NOW + 0.1, 0.1, None, "ok", "2027"),
        (NOW, NOW + 0.1, 0.1, NOW - 1.5, "ok", "2027"),  # file systems keep coarse times
        (NOW, NOW + 0.1, 0.1, NOW - 90, "warn", "the file system's clock is -90 s off"),
        (NOW, NOW + 0.1, 0.1, NOW + 3600, "warn", "+3600 s off"),
        (NOW, NOW + 60, 0.1, NOW, "warn", "was set"),
        (NOW, NOW + 0.1, 0.0, NOW, "fail", "stands still"),
        (0.0, 0.1, 0.1, 0.05, "fail", "the year is 1970"),
    ],
)
def test_clocks(before, after, secs, written, status, words):
    found = surroundings.judge_clock(before, after, secs, written)
    assert (found.status, words in found.found) == (status, True)


def test_this_machine(tmp_path):
    machine = Machine(workdir=tmp_path / "w", environ={"PATH": ""})
    assert surroundings.check_clock(machine).found[:4] == time.strftime("%Y")
    for check in ("check_library_path", "check_variables", "check_nccl"):
        assert getattr(surroundings, check)(machine).status == "ok"
    assert "open files" in surroundings.check_limits(machine).found
    assert surroundings.check_shm(machine).status in ("ok", "n/a")
    assert list(tmp_path.iterdir()) == []
