import pytest

from jaxtrain.config import Config
from jaxtrain.config.schema import Distributed
from jaxtrain.distributed.alone import Alone
from jaxtrain.distributed.join import join, joined, leave
from jaxtrain.errors import StoppedError

# What several processes do is in tests/cluster.


def test_a_process_alone_joins_nobody():
    crew = join(Distributed(), {})
    assert type(crew) is Alone
    assert (crew.index, crew.num_processes) == (0, 1)
    leave()


def test_an_error_inside_passes_through():
    with pytest.raises(ZeroDivisionError), joined(Config(distributed=Distributed(mode="off"))):
        _ = 1 / 0


def test_a_coordinator_that_is_not_there_is_told_with_its_address():
    environ = {"JAXTRAIN_NUM_PROCESSES": "2", "JAXTRAIN_PROCESS_ID": "1", "JAXTRAIN_COORDINATOR": "127.0.0.1:1"}
    with pytest.raises(StoppedError, match=r"127\.0\.0\.1:1 within 0\.3 s"):
        join(Distributed(init_timeout_secs=0.3), environ)
