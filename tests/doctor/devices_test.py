import pytest

from jaxtrain.doctor.devices import check_bandwidth, check_devices, judge_bandwidth, judge_devices, judge_jax
from jaxtrain.doctor.machine import Machine
from jaxtrain.doctor.programs import Reply

IMPORTED = {"version": "0.10.2", "path": "site-packages/jax", "secs": 1.4}


def devices(**changes):
    facts = {"platform": "gpu", "kinds": ["H100"] * 8, "memory": [60 * 2**30] * 8, "wrong": []}
    return Reply({"import": IMPORTED, "devices": {**facts, **changes}})


def collectives(rate=2e11, is_right=True):
    facts = {"is_right": is_right, "bytes_per_sec": rate, "num_devices": 8}
    return Reply({"psum": facts, "all_gather": {**facts, "bytes_per_sec": 2.5e11}})


@pytest.mark.parametrize(
    ("reply", "status", "words"),
    [
        (Reply({"import": IMPORTED}), "ok", "jax 0.10.2 in site-packages/jax, imported in 1.4 s"),
        (Reply({"import": {**IMPORTED, "secs": 44.0}}), "warn", "44.0 s"),
        (Reply({}, "ImportError: broken"), "fail", "import jax: ImportError: broken"),
        (Reply({}, "no end within 60 s"), "fail", "no end within 60 s"),
    ],
)
def test_jax_can_be_imported_or_not(reply, status, words):
    found = judge_jax(reply)
    assert (found.status, words in found.found) == (status, True)


@pytest.mark.parametrize(
    ("reply", "num_gpus", "status", "words"),
    [
        (devices(), 8, "ok", "8 x H100 (gpu), 60.0 GiB each for JAX"),
        (devices(platform="cpu", kinds=["cpu"], memory=[0]), 0, "ok", "1 x cpu (cpu)"),
        (devices(platform="cpu", kinds=["cpu"], memory=[0]), 8, "warn", "although the driver shows 8 GPUs"),
        (devices(kinds=["H100"] * 4), 8, "warn", "4 x H100 (gpu), 60.0 GiB each for JAX of 8 GPUs"),
        (devices(wrong=["cuda:3"]), 8, "fail", "wrong results on cuda:3"),
        (Reply({"import": IMPORTED}, "ended by SIGABRT"), 8, "fail", "JAX finds no device: ended by SIGABRT"),
    ],
)
def test_devices_are_held_against_the_driver(reply, num_gpus, status, words):
    found = judge_devices(reply, num_gpus)
    assert (found.status, words in found.found) == (status, True)


@pytest.mark.parametrize(
    ("reply", "has_nvlink", "status", "words"),
    [
        (collectives(), True, "ok", "psum 200 GB/s, all_gather 250 GB/s"),
        (collectives(8e9), True, "warn", "psum 8 GB/s"),
        (collectives(8e9), False, "ok", "psum 8 GB/s"),
        (collectives(is_right=False), False, "fail", "wrong sums"),
        (Reply({"psum": {}}, "no end within 120 s"), True, "fail", "no end within 120 s"),
    ],
)
def test_collectives_are_held_against_the_links(reply, has_nvlink, status, words):
    found = judge_bandwidth(reply, has_nvlink=has_nvlink)
    assert (found.status, words in found.found) == (status, True)


def test_the_simulated_devices_of_these_tests_are_found_and_joined():
    machine = Machine()
    assert "8 x cpu (cpu)" in check_devices(machine).found
    assert machine.jax["devices"]["wrong"] == []
    found = check_bandwidth(machine)
    assert found.status == "ok", found
    assert "psum" in found.found


def test_one_device_has_no_peer():
    machine = Machine()
    machine.jax = devices(kinds=["H100"])
    assert check_bandwidth(machine).found == "one device"
    machine.jax = Reply({}, "broken")
    assert (check_devices(machine).status, check_bandwidth(machine).status) == ("n/a", "n/a")
