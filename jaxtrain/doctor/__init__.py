"""`jaxtrain doctor`: is this machine fit for a run? Imports no jax: that may be what is broken."""

from collections.abc import Iterator

from jaxtrain.doctor import (
    accelerators,
    configured,
    devices,
    network,
    packages,
    programs,
    storage,
    surroundings,
)
from jaxtrain.doctor.check import Check, make
from jaxtrain.doctor.finding import FAIL, Finding
from jaxtrain.doctor.machine import CONFIG_SECS, DEVICES_SECS, EXPERIMENT_SECS, Machine

__all__ = ["CHECKS", "FAIL", "Check", "Finding", "Machine", "examine"]

_QUICK_SECS, _SMI_SECS = 15.0, 45.0

# In the order of the table: what is below may need what is above.
CHECKS = (
    Check("python", _QUICK_SECS, packages.check_python),
    Check("packages", _QUICK_SECS, packages.check_packages),
    Check("fit", _QUICK_SECS, packages.check_fit),
    Check("driver", _SMI_SECS, accelerators.check_driver),
    Check("cuda", _SMI_SECS, accelerators.check_cuda),
    Check("libraries", _SMI_SECS, accelerators.check_libraries),
    Check("links", _SMI_SECS, accelerators.check_links),
    Check("library path", _QUICK_SECS, surroundings.check_library_path),
    Check("variables", _SMI_SECS, surroundings.check_variables),
    Check("nccl", _QUICK_SECS, surroundings.check_nccl),
    Check("jax", DEVICES_SECS, devices.check_jax),
    Check("devices", _SMI_SECS, devices.check_devices),
    Check("bandwidth", DEVICES_SECS, devices.check_bandwidth),
    Check("config", CONFIG_SECS, configured.check_config),
    Check("secrets", _QUICK_SECS, configured.check_secrets),
    Check("coordinator", _QUICK_SECS, network.check_coordinator),
    Check("experiment", EXPERIMENT_SECS, configured.check_experiment),
    Check("data", _QUICK_SECS, configured.check_data),
    Check("workdir", _QUICK_SECS, storage.check_workdir),
    Check("disk speed", _SMI_SECS, storage.check_speed),
    Check("disk space", _SMI_SECS, storage.check_space),
    Check("compile cache", _QUICK_SECS, storage.check_compile_cache),
    Check("clock", _QUICK_SECS, surroundings.check_clock),
    Check("open files", _QUICK_SECS, surroundings.check_limits),
    Check("shared memory", _SMI_SECS, surroundings.check_shm),
)


def examine(machine: Machine) -> Iterator[tuple[str, Finding]]:
    """Make every check in order and give (name, finding) as soon as each is made. Raises nothing."""
    try:
        for check in CHECKS:
            yield check.name, make(check, machine)
    finally:
        programs.kill_all()
