"""Which processes train together, as the program that started them says: read from environment variables alone."""

import dataclasses
import os
import re
from collections.abc import Mapping

from jaxtrain.config import schema
from jaxtrain.errors import ConfigError, Problem, RefusedError

PORT = 8476  # of the coordinator, where nothing says another
_PORTS = (61440, 65535)  # jobs of a cluster share nodes: the number of a job chooses among these
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclasses.dataclass(frozen=True)
class Decision:
    """index: of this process, from 0.   coordinator: "host:port" of process 0.   by: who said so, for a person."""

    num_processes: int
    index: int
    coordinator: str
    by: str

    def __str__(self) -> str:
        if self.num_processes == 1:
            return f"one process ({self.by})"
        return f"process {self.index} of {self.num_processes}, coordinator {self.coordinator} ({self.by})"


def decide(distributed: schema.Distributed, environ: Mapping[str, str] | None = None) -> Decision:
    """Say which process this is, of how many. Raises RefusedError for an environment that contradicts itself.

    The first of these that is there decides: JAXTRAIN_ variables, SLURM, Open MPI, another MPI, a Kubernetes indexed
    job. In the mode "explicit" the first one must be there.
    """
    environ = os.environ if environ is None else environ
    if distributed.mode == "off":
        return Decision(1, 0, "", "distributed.mode=off")
    readers = (_plain,) if distributed.mode == "explicit" else (_plain, _slurm, _open_mpi, _mpi, _kubernetes)
    found = next((decision for reader in readers if (decision := reader(environ)) is not None), None)
    if found is None:
        if distributed.mode == "explicit":
            allowed = "needs JAXTRAIN_NUM_PROCESSES and JAXTRAIN_PROCESS_ID in the environment, which lacks them"
            raise ConfigError([Problem("distributed.mode", "explicit", allowed, 'Set them, or use "auto".')])
        return Decision(1, 0, "", "nothing in the environment tells of others")
    if found.num_processes == 1:
        return found
    return _with_coordinator(found, distributed.coordinator, environ)


def _with_coordinator(found: Decision, given: str, environ: Mapping[str, str]) -> Decision:
    address = given or found.coordinator
    if not address:
        allowed = f"what started this ({found.by}) does not say where process 0 is reached"
        raise ConfigError(
            [
                Problem(
                    "distributed.coordinator",
                    '""',
                    allowed,
                    'Give "host:port", the same to all, or set JAXTRAIN_COORDINATOR.',
                )
            ]
        )
    host, port = split_address(address)
    num_nodes = _num_nodes(environ)
    if host in LOOPBACK and num_nodes > 1:
        raise RefusedError(
            f"The coordinator {address} is this node itself for everyone, but there are {num_nodes} nodes. Give the "
            "name of the node of process 0 with --config.distributed.coordinator=HOST:PORT or JAXTRAIN_COORDINATOR."
        )
    return dataclasses.replace(found, coordinator=f"{host}:{port}")


def split_address(address: str) -> tuple[str, int]:
    """Give (host, port) of "host:port", "[::1]:port" or "host"."""
    host, _, port = address.rpartition(":") if re.search(r":\d+$", address) else (address, "", str(PORT))
    return host.strip("[]"), int(port)


def _number(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise RefusedError(f"{name}={environ[name]!r} in the environment is not a whole number.") from None


def _make(environ: Mapping[str, str], size: str, index: str, coordinator: str, by: str) -> Decision:
    num_processes, number = _number(environ, size), _number(environ, index)
    if not 0 <= number < num_processes:
        raise RefusedError(
            f"{index}={number} and {size}={num_processes} in the environment contradict each other: processes are "
            f"numbered from 0 to {num_processes - 1}."
        )
    return Decision(num_processes, number, coordinator, by)


def _plain(environ: Mapping[str, str]) -> Decision | None:
    names = ("JAXTRAIN_NUM_PROCESSES", "JAXTRAIN_PROCESS_ID")
    present = [name for name in names if name in environ]
    if not present:
        return None
    if "JAXTRAIN_PROCESS_ID" not in environ and "JOB_COMPLETION_INDEX" in environ:
        return None  # an indexed job, which is told the number of its processes this way
    if len(present) == 1:
        missing = next(name for name in names if name not in environ)
        raise RefusedError(f"{present[0]} is set in the environment and {missing} is not. Set both or neither.")
    return _make(environ, *names, environ.get("JAXTRAIN_COORDINATOR", ""), "JAXTRAIN_ variables")


def _slurm(environ: Mapping[str, str]) -> Decision | None:
    # A step, which srun starts. The script of a batch job is no part of one, whatever the job was given.
    if not {"SLURM_JOB_ID", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_STEP_NODELIST"} <= environ.keys():
        return None
    low, high = _PORTS
    port = low + _number(environ, "SLURM_JOB_ID") % (high - low)
    host = first_host(environ["SLURM_STEP_NODELIST"])
    by = f"SLURM job {environ['SLURM_JOB_ID']}"
    return _make(environ, "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", f"{host}:{port}", by)


def first_host(node_list: str) -> str:
    """Give the first of SLURM's list of nodes, such as "n[003-012,20],login"."""
    match = re.match(r"([^\[,]+)(?:\[([^\],-]+)[^\]]*\]([^,\[]*))?", node_list.strip())
    if match is None:
        raise RefusedError(f"SLURM_STEP_NODELIST={node_list!r} in the environment names no node.")
    return "".join(part or "" for part in match.groups())


def _open_mpi(environ: Mapping[str, str]) -> Decision | None:
    if not {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"} <= environ.keys():
        return None
    # Its daemon's address, such as "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911", is a node of rank 0.
    uri = environ.get("OMPI_MCA_orte_hnp_uri") or environ.get("PMIX_SERVER_URI2") or ""
    match = re.search(r"tcp4?://([^,:;/]+)", uri)
    job = re.match(r"\D*(\d+)", uri)
    low, high = _PORTS
    coordinator = f"{match[1]}:{low + int(job[1]) % (high - low)}" if match and job else ""
    if environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") == environ["OMPI_COMM_WORLD_SIZE"] and job:
        coordinator = f"127.0.0.1:{low + int(job[1]) % (high - low)}"
    coordinator = environ.get("JAXTRAIN_COORDINATOR", coordinator)
    return _make(environ, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", coordinator, "Open MPI")


def _mpi(environ: Mapping[str, str]) -> Decision | None:
    if not {"PMI_SIZE", "PMI_RANK"} <= environ.keys():
        return None
    return _make(environ, "PMI_SIZE", "PMI_RANK", environ.get("JAXTRAIN_COORDINATOR", ""), "MPI (PMI)")


def _kubernetes(environ: Mapping[str, str]) -> Decision | None:
    if "JOB_COMPLETION_INDEX" not in environ or "KUBERNETES_SERVICE_HOST" not in environ:
        return None
    if "JAXTRAIN_NUM_PROCESSES" not in environ:
        raise RefusedError(
            "This is a pod of a Kubernetes indexed job (JOB_COMPLETION_INDEX is set), but JAXTRAIN_NUM_PROCESSES is "
            "not set. Set it to the job's completions in the manifest, as scripts/kubernetes does."
        )
    coordinator = environ.get("JAXTRAIN_COORDINATOR", "")
    by = "Kubernetes indexed job"
    return _make(environ, "JAXTRAIN_NUM_PROCESSES", "JOB_COMPLETION_INDEX", coordinator, by)


def _num_nodes(environ: Mapping[str, str]) -> int:
    """The nodes that the environment tells of; 1 where it tells of none."""
    if "SLURM_STEP_NUM_NODES" in environ:
        return _number(environ, "SLURM_STEP_NUM_NODES")
    local, size = environ.get("OMPI_COMM_WORLD_LOCAL_SIZE"), environ.get("OMPI_COMM_WORLD_SIZE")
    return 2 if local and size and int(local) < int(size) else 1
