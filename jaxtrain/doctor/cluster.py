"""Which processes train together, as the environment says. Imports no jax."""

from collections.abc import Mapping
from typing import Any

_NUM, _INDEX, _COORDINATOR = "JAXTRAIN_NUM_PROCESSES", "JAXTRAIN_PROCESS_ID", "JAXTRAIN_COORDINATOR"


def decide(environ: Mapping[str, str]) -> dict[str, Any]:
    """Give num_processes, index, coordinator and by (who said so), or only "trouble": what contradicts itself."""
    present = [name for name in (_NUM, _INDEX) if name in environ]
    if not present:
        return {"num_processes": 1, "index": 0, "coordinator": "", "by": "nothing in the environment tells of others"}
    if len(present) == 1:
        return {"trouble": f"of {_NUM} and {_INDEX} only {present[0]} is set"}
    try:
        num_processes, index = int(environ[_NUM]), int(environ[_INDEX])
    except ValueError:
        return {"trouble": f"{_NUM}={environ[_NUM]} and {_INDEX}={environ[_INDEX]} are not whole numbers"}
    if not 0 <= index < num_processes:
        return {"trouble": f"{_INDEX}={index} is not below {_NUM}={num_processes}"}
    coordinator = environ.get(_COORDINATOR, "")
    if num_processes > 1 and not coordinator:
        return {"trouble": f"{_COORDINATOR} does not say where process 0 is reached"}
    return {"num_processes": num_processes, "index": index, "coordinator": coordinator, "by": "JAXTRAIN_ variables"}
