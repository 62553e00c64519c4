"""The driver, CUDA and its libraries, and the links between the GPUs of this machine. Imports no jax."""

import re
from collections import Counter
from collections.abc import Mapping

from jaxtrain.doctor import nvidia, packages
from jaxtrain.doctor.finding import Finding, fail, not_applicable, ok, warn
from jaxtrain.doctor.machine import Machine
from jaxtrain.doctor.nvidia import Gpu
from jaxtrain.doctor.programs import Ended, how_it_ended

# The oldest driver for each CUDA that JAX is built for: docs.nvidia.com/cuda/cuda-toolkit-release-notes, table 3.
OLDEST_DRIVER = {12: "525.60.13", 13: "580.65.06"}
_NO_GPU = "no sign of an NVIDIA driver"
_USED_MIB = 1024  # more is another program's; a display takes less
LIBRARIES = ("cudnn", "nccl")


def check_driver(machine: Machine) -> Finding:
    """Does the driver work, and are its GPUs sound and free?"""
    if not machine.has_driver:
        return not_applicable(_NO_GPU)
    return judge_driver(machine.smi, machine.gpus if machine.smi.returncode == 0 else [])


def judge_driver(smi: Ended, gpus: list[Gpu]) -> Finding:
    """Judge what `nvidia-smi` ended with, and the GPUs that it lists."""
    if smi.returncode != 0:
        trouble = smi.trouble or how_it_ended(smi)
        if "version mismatch" in trouble:
            return fail(trouble, "The driver was updated under the loaded kernel module: reboot this machine.")
        if smi.returncode is None and "not on the PATH" in trouble:
            return warn(f"there is a driver, but {trouble}", "Add its directory to the PATH, also inside a container.")
        advice = "Install the driver or load its module; in a container, start it with the GPUs (--gpus=all)."
        return fail(trouble, advice)
    versions = nvidia.parse_versions(smi.stdout)
    if not gpus or versions is None:
        return fail("nvidia-smi lists no GPU", "Look at dmesg for Xid errors; in a container, give it the GPUs.")
    found = f"{nvidia.summary(gpus)}, {min(gpu.memory_mib for gpu in gpus):,} MiB, driver {versions[0]}"
    if broken := [gpu.index for gpu in gpus if gpu.ecc_errors]:
        advice = "Reset it (nvidia-smi -r) while nothing runs; replace it if the count grows."
        return fail(f"{found}; GPU {_listed(broken)} has uncorrected memory errors", advice)
    if mig := [gpu.index for gpu in gpus if gpu.mig]:
        return warn(f"{found}; GPU {_listed(mig)} is split (MIG)", "Parts of a GPU have no links to others.")
    if len({gpu.name for gpu in gpus}) > 1:
        return warn(found, "The slowest kind sets the pace; CUDA_VISIBLE_DEVICES chooses GPUs of one kind.")
    if used := [gpu.index for gpu in gpus if gpu.used_mib > _USED_MIB]:
        return warn(f"{found}; GPU {_listed(used)} is used by another program", "nvidia-smi shows by which.")
    return ok(found)


def check_cuda(machine: Machine) -> Finding:
    """Does the driver run the CUDA that JAX's plugin is built for?"""
    if not machine.has_driver:
        return not_applicable(_NO_GPU)
    majors = [major for major in OLDEST_DRIVER if packages.installed(f"jax-cuda{major}-plugin")]
    wants_cpu = machine.environ.get("JAX_PLATFORMS", "").startswith("cpu")
    toolkits = {major: _version(f"nvidia-cuda-runtime-cu{major}", "nvidia-cuda-runtime") for major in majors}
    return judge_cuda(nvidia.parse_versions(machine.smi.stdout), toolkits, wants_cpu=wants_cpu)


def judge_cuda(versions: tuple[str, str] | None, toolkits: Mapping[int, str], *, wants_cpu: bool = False) -> Finding:
    """Judge (driver, newest CUDA it runs) by the installed plugins: CUDA major -> runtime version, "" if not pip's."""
    if versions is None:
        return not_applicable("the driver does not answer")
    driver, newest = versions
    if not toolkits:
        if wants_cpu:
            return not_applicable("JAX_PLATFORMS asks for the CPU")
        name = 13 if nvidia.as_numbers(driver) >= nvidia.as_numbers(OLDEST_DRIVER[13]) else 12
        return fail("there is a GPU, but no CUDA plugin of JAX", f"pip install -U 'jax[cuda{name}]'")
    major = max(toolkits)
    found = f"plugin for CUDA {major}, runtime {toolkits[major] or 'of the system'}, driver {driver} (CUDA {newest})"
    if len(toolkits) > 1:
        return fail(f"plugins for CUDA {_listed(sorted(toolkits))}", "Uninstall one: JAX cannot load both.")
    if nvidia.as_numbers(driver) < nvidia.as_numbers(OLDEST_DRIVER[major]):
        older = f", or pip install 'jax[cuda{major - 1}]'" if major - 1 in OLDEST_DRIVER else ""
        advice = f"CUDA {major} needs driver {OLDEST_DRIVER[major]} or newer: update it{older}."
        return fail(found, advice)
    if nvidia.as_numbers(toolkits[major])[:2] > nvidia.as_numbers(newest)[:2]:
        return warn(found, "It runs, but what a new runtime compiles may need the newer driver: update it.")
    return ok(found)


def check_libraries(machine: Machine) -> Finding:
    """Are cuDNN and NCCL there, and from one place?"""
    if not machine.has_driver:
        return not_applicable(_NO_GPU)
    major = next((major for major in OLDEST_DRIVER if packages.installed(f"jax-cuda{major}-plugin")), None)
    if major is None:
        return not_applicable("no CUDA plugin of JAX")
    by_pip = {name: _version(f"nvidia-{name}-cu{major}") for name in LIBRARIES}
    return judge_libraries(by_pip, nvidia.parse_libraries(machine.linker_cache), major)


def judge_libraries(by_pip: Mapping[str, str], by_system: Mapping[str, Mapping[str, str]], major: int = 12) -> Finding:
    """Judge the versions that pip has installed ("" for none) and those of the system."""
    found, missing = [], []
    for name, version in by_pip.items():
        system = by_system.get(name, {})
        if version:
            found.append(f"{name} {version} (pip)")
        elif system:
            newest = max(system, key=nvidia.as_numbers)
            found.append(f"{name} {newest} ({system[newest]})")
        else:
            missing.append(name)
    if missing:
        advice = f"pip install -U 'jax[cuda{major}]' brings them; 'jax[cuda{major}-local]' takes those of the system."
        return fail(f"{' and '.join(missing)} found neither by pip nor by ldconfig", advice)
    return ok(", ".join(found))


def check_links(machine: Machine) -> Finding:
    """How are the GPUs of this machine joined?"""
    if not machine.has_driver:
        return not_applicable(_NO_GPU)
    if len(machine.gpus) < 2:
        return not_applicable(f"{len(machine.gpus)} GPU")
    return judge_links(machine.topology)


def judge_links(topology: Ended) -> Finding:
    """Judge the links between all pairs."""
    links = nvidia.parse_links(topology.stdout)
    if topology.returncode != 0 or not links:
        return warn(f"unknown: {topology.trouble or how_it_ended(topology)}", "nvidia-smi topo -m should show them.")
    counts = Counter(links.values())
    found = ", ".join(f"{number} pairs {link}" for link, number in counts.most_common())
    slow = [f"{a}-{b}" for (a, b), link in links.items() if not re.match("NV", link)]
    if not slow:
        return ok(found)
    if len(slow) < len(links):
        return warn(f"{found}; no NVLink between GPU {', '.join(slow[:8])}", "Choose GPUs that are linked.")
    if any(link == "SYS" for link in links.values()):
        return warn(
            f"{found}; no NVLink", "Some pairs reach each other across CPU sockets only: expect slow reductions."
        )
    return ok(f"{found}; no NVLink")


def _version(*names: str) -> str:
    found = (packages.installed(name) for name in names)
    return next((each[0] for each in found if each), "")


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
