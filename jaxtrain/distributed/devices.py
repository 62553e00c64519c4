"""Which accelerators of its node a process takes."""

from collections.abc import Mapping
from pathlib import Path

from jaxtrain.errors import RefusedError


def choose_devices(
    local_index: int, num_local: int, environ: Mapping[str, str], num_devices: int | None = None
) -> list[int] | None:
    """Give the numbers of this process's GPUs, for process `local_index` of the `num_local` on this node.

    None: all that it sees, because it is alone here, was given its own by what started it, or there are none.
    num_devices: GPUs that it sees, by default what the environment and the driver say. Raises RefusedError when the
    processes cannot share them out evenly.
    """
    count = count_devices(environ) if num_devices is None else num_devices
    if num_local == 1 or count <= 1 or environ.get("JAX_PLATFORMS") == "cpu":
        return None
    if count % num_local:
        raise RefusedError(
            f"{num_local} processes on this node cannot share its {count} GPUs out evenly. Start one process for each "
            f"GPU, one for all of them, or a number that divides {count}."
        )
    share = count // num_local
    return list(range(local_index * share, (local_index + 1) * share))


def count_devices(environ: Mapping[str, str], driver: Path = Path("/proc/driver/nvidia/gpus")) -> int:
    """Count the NVIDIA GPUs that this process sees."""
    if "CUDA_VISIBLE_DEVICES" in environ:
        return len([name for name in environ["CUDA_VISIBLE_DEVICES"].split(",") if name.strip() not in ("", "-1")])
    return len(list(driver.iterdir())) if driver.is_dir() else 0
