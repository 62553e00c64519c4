import pytest

from jaxtrain.config.schema import Distributed
from jaxtrain.distributed.detect import PORT, Decision, decide, first_host, split_address
from jaxtrain.errors import RefusedError

PLAIN = {"JAXTRAIN_NUM_PROCESSES": "4", "JAXTRAIN_PROCESS_ID": "2", "JAXTRAIN_COORDINATOR": "node0:1234"}
SLURM = {
    "SLURM_JOB_ID": "70000",
    "SLURM_NTASKS": "16",
    "SLURM_STEP_NUM_TASKS": "16",
    "SLURM_PROCID": "9",
    "SLURM_STEP_NODELIST": "gpu[013-014],login1",
    "SLURM_STEP_NUM_NODES": "2",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1,10.108.0.1:34911",
}
KUBERNETES = {
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "JOB_COMPLETION_INDEX": "1",
    "JAXTRAIN_NUM_PROCESSES": "2",
    "JAXTRAIN_COORDINATOR": "train-0.train:8476",
}


@pytest.mark.parametrize(
    ("environ", "num_processes", "index", "coordinator"),
    [
        ({}, 1, 0, ""),
        (PLAIN, 4, 2, "node0:1234"),
        ({**PLAIN, **SLURM}, 4, 2, "node0:1234"),
        (SLURM, 16, 9, f"gpu013:{61440 + 70000 % 4095}"),
        ({**SLURM, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, 1, 0, None),
        # The script of a batch job, outside of any step.
        ({name: SLURM[name] for name in ("SLURM_JOB_ID", "SLURM_NTASKS", "SLURM_PROCID")}, 1, 0, ""),
        (OPEN_MPI, 8, 3, f"10.96.0.1:{61440 + 1531576320 % 4095}"),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "4"}, 4, 3, f"127.0.0.1:{61440 + 1531576320 % 4095}"),
        ({"PMI_SIZE": "2", "PMI_RANK": "1", "JAXTRAIN_COORDINATOR": "node0"}, 2, 1, f"node0:{PORT}"),
        (KUBERNETES, 2, 1, "train-0.train:8476"),
    ],
)
def test_what_started_the_processes_says_how_many_there_are(environ, num_processes, index, coordinator):
    decision = decide(Distributed(), environ)
    assert (decision.num_processes, decision.index) == (num_processes, index)
    if coordinator is not None:
        assert decision.coordinator == coordinator


def test_the_config_may_name_the_coordinator_and_off_is_one_process():
    assert decide(Distributed(coordinator="other:99"), SLURM).coordinator == "other:99"
    assert decide(Distributed(mode="off"), PLAIN) == Decision(1, 0, "", "distributed.mode=off")
    assert decide(Distributed(mode="explicit"), {**SLURM, **PLAIN}).num_processes == 4


@pytest.mark.parametrize(
    ("distributed", "environ", "named"),
    [
        ({}, {**PLAIN, "JAXTRAIN_PROCESS_ID": "4"}, ["JAXTRAIN_PROCESS_ID=4", "0 to 3"]),
        ({}, {**PLAIN, "JAXTRAIN_PROCESS_ID": "two"}, ["JAXTRAIN_PROCESS_ID='two'"]),
        ({}, {"JAXTRAIN_NUM_PROCESSES": "2"}, ["JAXTRAIN_PROCESS_ID is not"]),
        ({"mode": "explicit"}, SLURM, ["distributed.mode", "JAXTRAIN_NUM_PROCESSES"]),
        ({"coordinator": "localhost:8476"}, SLURM, ["localhost:8476", "2 nodes"]),
        ({"coordinator": "127.0.0.1:8476"}, OPEN_MPI, ["127.0.0.1:8476", "2 nodes"]),
        ({}, {"PMI_SIZE": "2", "PMI_RANK": "1"}, ["distributed.coordinator", "host:port"]),
        ({}, {name: KUBERNETES[name] for name in ("KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX")}, ["completions"]),
    ],
)
def test_an_environment_that_contradicts_itself_is_refused_with_what_to_do(distributed, environ, named):
    with pytest.raises(RefusedError) as raised:
        decide(Distributed(**distributed), environ)
    assert raised.value.exit_code == 2
    for word in named:
        assert word in str(raised.value)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node001", "node001"),
        ("node001,host2", "node001"),
        ("node[001-015],host2", "node001"),
        ("node[001,007-015],host2", "node001"),
        ("a[3-4]-ib,b", "a3-ib"),
    ],
)
def test_the_first_node_of_a_slurm_list(nodes, first):
    assert first_host(nodes) == first


@pytest.mark.parametrize(
    ("address", "parts"),
    [("a:1", ("a", 1)), ("a", ("a", PORT)), ("[::1]:5", ("::1", 5)), ("10.0.0.1:22", ("10.0.0.1", 22))],
)
def test_an_address_has_a_host_and_a_port(address, parts):
    assert split_address(address) == parts


def test_the_decision_is_told():
    assert str(decide(Distributed(), PLAIN)) == "process 2 of 4, coordinator node0:1234 (JAXTRAIN_ variables)"
    assert "one process" in str(decide(Distributed(), {}))
