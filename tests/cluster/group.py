"""Several processes of one run on this machine, found by JAXTRAIN_ variables, with the run of tests/faults."""

import dataclasses
import shutil
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.faults import trial
from tests.runner import Finished, Run, Runner

COMMAND = ("--config=pair.py", "--workdir=w")
_HERE = Path(__file__).parent


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def set_up(directory: Path) -> None:
    """Put the config and its data into a directory."""
    trial.set_up(directory)
    shutil.copy(_HERE / "pair.py", directory)


@dataclasses.dataclass
class Group:
    """The processes of one launch, by number."""

    runs: list[Run]

    def finish(self, timeout_secs: float = 120.0) -> list[Finished]:
        return [run.finish(timeout_secs) for run in self.runs]

    @property
    def output(self) -> str:
        return "\n".join(f"== {number}\n{run.stdout}\n{run.stderr}" for number, run in enumerate(self.runs))


def start(
    cli: Runner,
    *args: str,
    num_processes: int = 2,
    num_devices: int = 1,
    only: tuple[int, ...] | None = None,
    port: int = 0,
    more: Mapping[int, tuple[str, ...]] | None = None,
    env: Mapping[int, Mapping[str, str]] | None = None,
    cwd: Mapping[int, Path] | None = None,
    command: Sequence[str] = ("-m", "jaxtrain"),
) -> Group:
    """Start the processes, or `only` some of them; `more`, `env` and `cwd` are those of single ones."""
    port = port or free_port()
    runs = []
    for number in range(num_processes) if only is None else only:
        variables = {
            "JAXTRAIN_NUM_PROCESSES": str(num_processes),
            "JAXTRAIN_PROCESS_ID": str(number),
            "JAXTRAIN_COORDINATOR": f"127.0.0.1:{port}",
            **(env or {}).get(number, {}),
        }
        flags = (*(args or COMMAND), *(more or {}).get(number, ()))
        own_cwd = (cwd or {}).get(number)
        runs.append(cli.start(*flags, env=variables, num_devices=num_devices, cwd=own_cwd, command=command))
    return Group(runs)
