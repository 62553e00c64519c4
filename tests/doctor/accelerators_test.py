import dataclasses

import pytest

from jaxtrain.doctor import accelerators, nvidia
from jaxtrain.doctor.machine import Machine
from jaxtrain.doctor.programs import Ended
from tests.doctor import recordings


def machine(tmp_path, recorded):
    return Machine(environ={"PATH": recordings.install(tmp_path / "bin", recorded)})


@pytest.mark.parametrize(
    ("recorded", "status", "words"),
    [
        (recordings.A100, "ok", "8 x NVIDIA A100-SXM4-80GB, 81,920 MiB, driver 535.129.03"),
        (recordings.H100, "ok", "8 x NVIDIA H100 80GB HBM3, 81,559 MiB"),
        (recordings.CONSUMER, "ok", "1 x NVIDIA GeForce RTX 4090"),
        (recordings.OLD, "ok", "4 x Tesla V100"),
        (recordings.NO_DRIVER, "fail", "couldn't communicate with the NVIDIA driver"),
        (recordings.MISMATCH, "fail", "Driver/library version mismatch"),
        (recordings.LOST, "fail", "No devices were found"),
    ],
)
def test_the_driver_of_each_machine(tmp_path, recorded, status, words):
    found = accelerators.check_driver(machine(tmp_path, recorded))
    assert found.status == status
    assert words in found.found
    assert bool(found.advice) == (status == "fail")


def test_a_mismatch_needs_a_reboot(tmp_path):
    assert "reboot" in accelerators.check_driver(machine(tmp_path, recordings.MISMATCH)).advice


def test_an_nvidia_smi_that_hangs_is_given_up(tmp_path):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    found = accelerators.check_driver(Machine(environ={"PATH": f"{tmp_path}:/usr/bin:/bin"}, max_secs=0.5))
    assert (found.status, found.found) == ("fail", "no end within 0.5 s")


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({}, "ok", "driver 535"),
        ({"ecc_errors": 2}, "fail", "GPU 1 has uncorrected memory errors"),
        ({"mig": True}, "warn", "GPU 1 is split"),
        ({"name": "NVIDIA A30"}, "warn", "1 x NVIDIA A30"),
        ({"used_mib": 40000}, "warn", "GPU 1 is used by another program"),
        ({"used_mib": 500}, "ok", "driver 535"),
    ],
)
def test_one_gpu_that_is_not_as_the_others(changes, status, words):
    gpus = nvidia.parse_gpus(recordings.A100.gpus)
    gpus[1] = dataclasses.replace(gpus[1], **changes)
    found = accelerators.judge_driver(Ended(0, recordings.A100.smi, ""), gpus)
    assert (found.status, words in found.found) == (status, True)


@pytest.mark.parametrize(
    ("recorded", "toolkits", "status", "words"),
    [
        (recordings.A100, {12: "12.2.140"}, "ok", "plugin for CUDA 12"),
        (recordings.A100, {12: "12.9.79"}, "warn", "update it"),
        (recordings.A100, {13: "13.0.48"}, "fail", "CUDA 13 needs driver 580.65.06 or newer: update it, or pip"),
        (recordings.H100, {13: "13.0.48"}, "ok", "plugin for CUDA 13"),
        (recordings.H100, {12: "12.9.79"}, "ok", "driver 580.95.05 (CUDA 13.0)"),
        (recordings.OLD, {12: "12.9.79"}, "fail", "CUDA 12 needs driver 525.60.13 or newer"),
        (recordings.H100, {12: "", 13: ""}, "fail", "JAX cannot load both"),
        (recordings.A100, {}, "fail", "pip install -U 'jax[cuda12]'"),
        (recordings.H100, {}, "fail", "pip install -U 'jax[cuda13]'"),
        (recordings.NO_DRIVER, {12: "12.9.79"}, "n/a", "does not answer"),
    ],
)
def test_the_driver_must_run_the_cuda_of_the_plugin(recorded, toolkits, status, words):
    found = accelerators.judge_cuda(nvidia.parse_versions(recorded.smi), toolkits)
    assert (found.status, words in f"{found.found} {found.advice}") == (status, True)


def test_no_plugin_is_fine_where_the_cpu_is_asked_for():
    assert accelerators.judge_cuda(("535.129.03", "12.2"), {}, wants_cpu=True).status == "n/a"


@pytest.mark.parametrize(
    ("by_pip", "ldconfig", "status", "words"),
    [
        ({"cudnn": "9.10.2.21", "nccl": "2.27.3"}, "", "ok", "cudnn 9.10.2.21 (pip), nccl 2.27.3 (pip)"),
        (
            {"cudnn": "", "nccl": "2.27.3"},
            recordings.LDCONFIG,
            "ok",
            "cudnn 9 (/usr/lib/x86_64-linux-gnu/libcudnn.so.9)",
        ),
        ({"cudnn": "", "nccl": ""}, "", "fail", "cudnn and nccl found neither"),
        ({"cudnn": "9.10.2.21", "nccl": ""}, "", "fail", "nccl found neither"),
    ],
)
def test_libraries_come_from_pip_or_the_system(by_pip, ldconfig, status, words):
    found = accelerators.judge_libraries(by_pip, nvidia.parse_libraries(ldconfig))
    assert (found.status, words in found.found) == (status, True)


@pytest.mark.parametrize(
    ("recorded", "status", "words"),
    [
        (recordings.A100, "ok", "28 pairs NV12"),
        (recordings.H100, "ok", "28 pairs NV18"),
        (recordings.BRIDGED, "warn", "no NVLink between GPU 0-2, 0-3, 1-2, 1-3"),
        (recordings.CONSUMER, "n/a", "1 GPU"),
        (dataclasses.replace(recordings.A100, topology=recordings.all_pairs(8, "SYS")), "warn", "28 pairs SYS"),
        (dataclasses.replace(recordings.A100, topology=recordings.all_pairs(8, "PIX")), "ok", "28 pairs PIX"),
        (dataclasses.replace(recordings.A100, topology="Failed"), "warn", "unknown"),
    ],
)
def test_links_of_each_machine(tmp_path, recorded, status, words):
    found = accelerators.check_links(machine(tmp_path, recorded))
    assert (found.status, words in found.found) == (status, True)


def test_a_machine_without_a_driver_has_nothing_to_check():
    bare = Machine(environ={"PATH": ""})
    assert not bare.has_driver
    for check in ("check_driver", "check_cuda", "check_libraries", "check_links"):
        assert getattr(accelerators, check)(bare).status == "n/a"


def test_the_installed_packages_are_asked_where_there_is_a_driver(tmp_path):
    there = machine(tmp_path, recordings.H100)
    assert accelerators.check_cuda(there).status == "fail"  # no plugin is installed for these tests
    assert accelerators.check_libraries(there).status == "n/a"
