"""How a process becomes one of a run's: it finds the others, learns who they are, and starts JAX with them."""

import atexit
import contextlib
import json
import logging
import os
import socket
import time
from collections.abc import Iterator, Mapping

import jax

from jaxtrain.config import Config, schema, to_dict
from jaxtrain.distributed import detect
from jaxtrain.distributed.agreement import require_same
from jaxtrain.distributed.alone import Alone
from jaxtrain.distributed.crew import Crew
from jaxtrain.distributed.detect import Decision
from jaxtrain.distributed.devices import choose_devices
from jaxtrain.distributed.service import TELL_SECS, Service
from jaxtrain.errors import RefusedError, StoppedError
from jaxtrain.workdir import logs
from jaxtrain.workdir.lock import boot_id

_logger = logging.getLogger(__name__)

_RETRY_SECS = 0.2
_PARTING_SECS = 5.0  # in which the others must have gone before the service of process 0 ends
_NEVER_SECS = 10 * 365 * 86400


_joined: tuple[Crew, Service | None] | None = None


def join(distributed: schema.Distributed, environ: Mapping[str, str] | None = None) -> Alone:
    """Find the other processes, if there are any, and start JAX together. Nothing may have used JAX's devices before.

    A process that has joined is given the same crew again. Raises RefusedError when the processes cannot belong
    together, StoppedError when not all come in time.
    """
    if _joined is not None:
        _joined[0].reset()
        return _joined[0]
    environ = os.environ if environ is None else environ
    decision = detect.decide(distributed, environ)
    if decision.num_processes == 1:
        return Alone()
    with logs.on_terminal(decision.index):
        return _join_others(decision, distributed, environ)


def _join_others(decision: Decision, distributed: schema.Distributed, environ: Mapping[str, str]) -> Crew:
    global _joined
    _logger.info("%s", decision)
    host, port = detect.split_address(decision.coordinator)
    service = _serve(host, port, decision, distributed) if decision.index == 0 else None
    about = {
        "index": decision.index,
        "num_processes": decision.num_processes,
        "node": environ.get("JAXTRAIN_NODE") or boot_id(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
    }
    crew = Crew(_connect(host, port, distributed.init_timeout_secs), about, distributed.heartbeat_timeout_secs)
    _joined = crew, service
    atexit.register(leave)  # of a script that calls `train`; the command does so itself
    crew.wait_for_all()
    _start_jax(crew, host, environ)
    return crew


def leave() -> None:
    """End JAX and the connection to the others, when all have come to their end."""
    global _joined
    if _joined is None:
        return
    (crew, service), _joined = _joined, None
    if crew.is_whole:
        with contextlib.suppress(StoppedError):
            crew.gather("the end", None)  # whose JAX leaves while others still compute would be missed by theirs
            if crew.index:
                jax.distributed.shutdown()
            crew.gather("the end of JAX", None)  # its service, in process 0, ends last: it aborts those it leaves
            crew.leave()
            if not crew.index:
                jax.distributed.shutdown()
    crew.close()
    if service is not None:
        service.close(_PARTING_SECS)


@contextlib.contextmanager
def joined(config: Config, workdir: str | os.PathLike[str] | None = None) -> Iterator[Alone]:
    """`join` for a run of this config, which all must have, and tell the others when what is inside fails."""
    crew = join(config.distributed)
    try:
        given = {"config": to_dict(config), "workdir": str(workdir or "")}
        require_same(crew, "command", given)
        yield crew
    except BaseException as error:
        crew.fail(f"{type(error).__name__}: {error}")
        raise


def _serve(host: str, port: int, decision: Decision, distributed: schema.Distributed) -> Service:
    here = "127.0.0.1" if host in detect.LOOPBACK else ""
    silence_secs, init_secs = distributed.heartbeat_timeout_secs, distributed.init_timeout_secs
    try:
        return Service(here, port, decision.num_processes, silence_secs, init_secs)
    except OSError as error:
        if refused := _ask_who_listens(port, decision):
            raise RefusedError(f"The processes do not fit together: {refused}.") from error
        raise RefusedError(
            f"Process 0 cannot listen at port {port}: {error.strerror}. Another run may use it; give another with "
            "--config.distributed.coordinator=HOST:PORT or JAXTRAIN_COORDINATOR."
        ) from error


def _ask_who_listens(port: int, decision: Decision) -> str:
    """Ask what has this port whether it is process 0 of this run too; it then tells all. "": it is something else."""
    about = {"index": 0, "num_processes": decision.num_processes, "host": socket.gethostname(), "pid": os.getpid()}
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=_PARTING_SECS) as connection:
            connection.sendall(json.dumps({"hello": about}).encode() + b"\n")
            with connection.makefile("rb") as lines:
                return str(json.loads(lines.readline()).get("refused", ""))
    except (OSError, ValueError, AttributeError):
        return ""


def _connect(host: str, port: int, timeout_secs: float) -> socket.socket:
    started = told = time.monotonic()
    while True:
        try:
            return socket.create_connection((host, port), timeout=5.0)
        except OSError as error:
            now = time.monotonic()
            why = error.strerror or str(error)
            if now - started > timeout_secs:
                raise StoppedError(
                    f"Process 0 was not reached at {host}:{port} within {timeout_secs:g} s: {why}. Is it running, is "
                    "this its address, and does a firewall let it through? The same command tries again."
                ) from error
            if now - told > TELL_SECS:
                told = now
                _logger.info("waiting for process 0 at %s:%d (%d s): %s", host, port, now - started, why)
            time.sleep(_RETRY_SECS)


def _start_jax(crew: Crew, host: str, environ: Mapping[str, str]) -> None:
    """Start JAX's own service, whose port process 0 chooses, once it is certain that all are there."""
    here = crew.members[crew.index]["node"]
    neighbours = [member["index"] for member in crew.members if member["node"] == here]
    device_ids = choose_devices(neighbours.index(crew.index), len(neighbours), environ)
    address = crew.from_first("JAX's address", lambda: f"{host}:{_free_port()}")
    # A lost process is noticed and told in crew.py. Left to JAX, a process would be aborted without a word.
    jax.config.update("jax_enable_recoverability", True)
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        address,
        crew.num_processes,
        crew.index,
        local_device_ids=device_ids,
        cluster_detection_method="deactivate",
        heartbeat_timeout_seconds=_NEVER_SECS,
    )
    num_nodes = len({member["node"] for member in crew.members})
    bound = "" if device_ids is None else f", device {' and '.join(map(str, device_ids))} of this node"
    _logger.info("%d processes on %d nodes%s", crew.num_processes, num_nodes, bound)


def _free_port() -> int:
    with socket.create_server(("", 0)) as probe:
        return int(probe.getsockname()[1])
