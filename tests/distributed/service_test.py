import json
import socket

import pytest

from jaxtrain.distributed.service import Service, where
from jaxtrain.errors import RefusedError, StoppedError
from tests.distributed.groups import crews, open_crew, together


def test_all_are_known_to_all_once_they_have_come():
    with crews(3) as opened:
        together([crew.wait_for_all for crew in opened])
        assert [[member["index"] for member in crew.members] for crew in opened] == [[0, 1, 2]] * 3
        assert where(opened[0].members[2]) == "process 2 (pid 102 on h)"


def test_those_who_do_not_come_are_named_when_the_time_is_over():
    with crews(3, init_secs=0.5, silence_secs=2.0, only=(0, 2)) as opened:
        errors = together([crew.wait_for_all for crew in opened])
    for error in errors:
        assert isinstance(error, StoppedError)
        assert "2 of 3 processes came" in str(error)
        assert "Missing: process 1." in str(error)
        assert "process 2 (pid 102 on h)" in str(error)


@pytest.mark.parametrize(
    ("index", "size", "named"), [(0, 2, "two processes were started as process 0"), (1, 3, "of 3 processes")]
)
def test_processes_that_do_not_fit_are_refused_and_all_hear_of_it(index, size, named):
    service = Service("127.0.0.1", 0, 2, 30.0, 30.0)
    first = open_crew(service.port, 0, 2)
    stranger = open_crew(service.port, index, size)
    for crew in (first, stranger):
        with pytest.raises(RefusedError, match=named):
            crew.wait_for_all()
        crew.close()
    service.close()


@pytest.mark.parametrize(
    "nonsense", [b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", b'{"hello": 3}\n', b"\xff" * 100 + b"\n", b'{"hello": {}}\n']
)
def test_something_else_that_talks_to_the_port_does_no_harm(nonsense):
    with crews(2, only=(0,)) as (first,):
        port = first._connection.getpeername()[1]
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(nonsense)
            stranger.settimeout(5)
            assert stranger.recv(100) == b""
        second = open_crew(port, 1, 2)
        together([first.wait_for_all, second.wait_for_all])
        assert together([lambda: first.gather("x", 1), lambda: second.gather("x", 2)]) == [[1, 2], [1, 2]]
        second.close()


def test_a_port_that_is_taken_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        Service("127.0.0.1", taken.getsockname()[1], 2, 1.0, 1.0)


def test_messages_are_lines_of_json():
    with crews(1) as (crew,):
        assert crew.gather("x", {"a": [1, None, "ü\n"]}) == [{"a": [1, None, "ü\n"]}]
        assert json.loads(json.dumps("ü\n")) == "ü\n"
