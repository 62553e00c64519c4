import socket

import pytest

from jaxtrain.doctor.machine import Machine
from jaxtrain.doctor.network import check_coordinator, judge_coordinator, split_address


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def judged(coordinator, index):
    return judge_coordinator({"num_processes": 2, "index": index, "coordinator": coordinator, "by": "test"})


@pytest.mark.parametrize(
    ("address", "parts"),
    [("n0:8476", ("n0", 8476)), ("[::1]:80", ("::1", 80)), ("n0", ("n0", 0)), ("n0:port", ("n0:port", 0))],
)
def test_an_address_is_a_host_and_a_port(address, parts):
    assert split_address(address) == parts


def test_process_0_finds_its_port_free():
    found = judged(f"127.0.0.1:{free_port()}", 0)
    assert (found.status, "the port is free" in found.found) == ("ok", True)


def test_process_0_finds_its_port_taken(listener):
    found = judged(f"127.0.0.1:{listener}", 0)
    assert found.status == "fail"
    assert f"cannot listen at port {listener}: Address already in use" in found.found


def test_process_0_at_an_address_of_another_machine_is_told():
    found = judged(f"192.0.2.1:{free_port()}", 0)  # of no machine: RFC 5737
    assert (found.status, "192.0.2.1 (192.0.2.1) is no address of this machine" in found.found) == ("warn", True)


def test_another_process_reaches_the_port(listener):
    assert judged(f"127.0.0.1:{listener}", 1).found.endswith("answers")


def test_a_host_that_refuses_has_answered():
    found = judged(f"127.0.0.1:{free_port()}", 1)
    assert (found.status, "nothing listens there yet" in found.found) == ("ok", True)


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("nowhere.invalid:8476", "nowhere.invalid is no known host"),
        ("127.0.0.1", "has no port"),
        ("127.0.0.1:99999", "has no port"),
    ],
)
def test_a_wrong_address_fails(address, index, words):
    found = judged(address, index)
    assert (found.status, words in found.found) == ("fail", True)


def test_the_environment_decides_whether_there_is_one():
    assert check_coordinator(Machine(environ={})).status == "n/a"
    both = {"JAXTRAIN_NUM_PROCESSES": "2", "JAXTRAIN_PROCESS_ID": "0"}
    assert "JAXTRAIN_COORDINATOR" in check_coordinator(Machine(environ=both)).found
    wrong = {**both, "JAXTRAIN_COORDINATOR": "nowhere.invalid:1"}
    assert "process 0 of 2" in check_coordinator(Machine(environ=wrong)).found
