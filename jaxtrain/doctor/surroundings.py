"""Environment variables, limits and clocks."""

import os
import re
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from jaxtrain.doctor import packages
from jaxtrain.doctor.finding import Finding, fail, not_applicable, ok, warn
from jaxtrain.doctor.machine import Machine

_CUDA_LIBRARY = re.compile(r"lib(cudart|cublas\w*|cudnn\w*|cufft|cusolver|cusparse|nccl|nvrtc|nvJitLink)\.so")
# Variables that slow a run down or change what it does: (name, the value that does, why).
HARMFUL: tuple[tuple[str, Callable[[str], bool], str], ...] = (
    ("JAX_DISABLE_JIT", lambda value: _is_true(value), "nothing is compiled"),
    ("JAX_DEBUG_NANS", lambda value: _is_true(value), "every step waits for its results"),
    ("JAX_ENABLE_X64", lambda value: _is_true(value), "64-bit numbers take their time and memory"),
    ("CUDA_LAUNCH_BLOCKING", lambda value: value not in ("", "0"), "every kernel is waited for"),
    ("XLA_PYTHON_CLIENT_ALLOCATOR", lambda value: value == "platform", "every allocation asks the driver"),
    ("CUDA_VISIBLE_DEVICES", lambda value: value in ("", "-1"), "all GPUs are hidden"),
)
HARMFUL_NCCL = {
    "NCCL_P2P_DISABLE": "GPUs reach each other through the host's memory",
    "NCCL_SHM_DISABLE": "processes of one node talk by network",
    "NCCL_IB_DISABLE": "InfiniBand and RoCE are left out",
    "NCCL_CHECKS_DISABLE": "wrong arguments go unnoticed",
}
_RELEASED = 2025  # no clock can be right that is before the year of this program
_CLOCK_SECS, _FILE_SECS = 0.05, 2.0
_MIN_FILES, _FEW_FILES = 256, 4096
_SMALL_SHM = 2**30
_SHM = Path("/dev/shm")  # noqa: S108 it is only measured


def check_library_path(machine: Machine) -> Finding:
    """Do libraries on LD_LIBRARY_PATH take the place of those that JAX's plugin was installed with?"""
    has_pip_cuda = any(packages.installed(f"nvidia-cudnn-cu{major}") for major in (12, 13))
    return judge_library_path(machine.environ.get("LD_LIBRARY_PATH", ""), has_pip_cuda=has_pip_cuda)


def judge_library_path(value: str, *, has_pip_cuda: bool) -> Finding:
    """Look into the directories of the variable."""
    if not value:
        return ok("LD_LIBRARY_PATH is not set")
    found = {}
    for directory in filter(None, value.split(":")):
        try:
            names = sorted({match[0] for name in os.listdir(directory) if (match := _CUDA_LIBRARY.match(name))})
        except OSError:
            continue
        if names:
            found[directory] = names
    if not found:
        return ok("LD_LIBRARY_PATH holds no CUDA library")
    told = "; ".join(f"{directory} has {', '.join(names[:4])}" for directory, names in found.items())
    if not has_pip_cuda:
        return ok(f"the CUDA libraries come from LD_LIBRARY_PATH: {told}")
    return warn(f"LD_LIBRARY_PATH overrides the CUDA libraries of pip: {told}", "unset LD_LIBRARY_PATH")


def check_variables(machine: Machine) -> Finding:
    """Do variables of JAX, XLA or CUDA change what a run does?"""
    return judge_variables(machine.environ, num_gpus=len(machine.gpus) if machine.has_driver else 0)


def judge_variables(environ: Mapping[str, str], *, num_gpus: int) -> Finding:
    """Name what is set, and what of it hurts."""
    wrong = [
        f"{name}={environ[name]}: {why}"
        for name, hurts, why in HARMFUL
        if name in environ and hurts(environ[name]) and (num_gpus or name.startswith("JAX_"))
    ]
    platforms = environ.get("JAX_PLATFORMS", "")
    if num_gpus and platforms.split(",")[0] == "cpu":
        wrong.append(f"JAX_PLATFORMS={platforms}: the GPUs are not used")
    flags = environ.get("XLA_FLAGS", "").split()
    if doubled := sorted({name for name in map(_flag, flags) if [*map(_flag, flags)].count(name) > 1}):
        wrong.append(f"XLA_FLAGS gives {', '.join(doubled)} more than once: the last one counts")
    if num_gpus and (flag := next((flag for flag in flags if "host_platform_device_count" in flag), None)):
        wrong.append(f"XLA_FLAGS has {flag}, which is for tests on the CPU")
    told = [f"{name}={environ[name]}" for name in ("JAX_PLATFORMS", "XLA_FLAGS") if environ.get(name)]
    if wrong:
        names = dict.fromkeys(re.findall(r"^\w+", "\n".join(wrong), re.MULTILINE))
        return warn("; ".join(wrong), f"unset {' '.join(names)}")
    return ok(", ".join(told) or "neither JAX_PLATFORMS nor XLA_FLAGS is set")


def check_nccl(machine: Machine) -> Finding:
    """Do variables of NCCL slow it down or hide a network?"""
    return judge_nccl(machine.environ, set(os.listdir("/sys/class/net")) if os.path.isdir("/sys/class/net") else set())


def judge_nccl(environ: Mapping[str, str], interfaces: set[str]) -> Finding:
    """Judge the NCCL_ variables on a machine with these network interfaces."""
    given = {name: value for name, value in environ.items() if name.startswith("NCCL_")}
    if not given:
        return ok("no NCCL_ variable is set")
    told = ", ".join(f"{name}={value}" for name, value in sorted(given.items()))
    wanted = given.get("NCCL_SOCKET_IFNAME", "")
    if wanted and interfaces and not wanted.startswith("^"):
        exact, names = wanted.startswith("="), wanted.lstrip("=").split(",")
        if not any(have == name or (not exact and have.startswith(name)) for name in names for have in interfaces):
            there = ", ".join(sorted(interfaces))
            return fail(
                f"NCCL_SOCKET_IFNAME={wanted} is no interface here ({there})", "Name one of these, or unset it."
            )
    if wrong := [f"{name}: {why}" for name, why in HARMFUL_NCCL.items() if given.get(name, "0") not in ("", "0")]:
        return warn("; ".join(wrong), "Unset what is not there for a reason.")
    if given.get("NCCL_DEBUG", "").upper() in ("INFO", "TRACE"):
        return warn(told, "NCCL_DEBUG=WARN says less, and nothing in each step.")
    return ok(told)


def check_limits(machine: Machine) -> Finding:
    """May a process open enough files?"""
    del machine
    return judge_limits(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def judge_limits(num_files: int) -> Finding:
    """Judge the soft limit of open files; -1 is none."""
    if num_files == resource.RLIM_INFINITY or num_files >= _FEW_FILES:
        return ok("any number of open files" if num_files == resource.RLIM_INFINITY else f"{num_files:,} open files")
    advice = "ulimit -n 65536, or LimitNOFILE of the service that starts the run."
    if num_files < _MIN_FILES:
        return fail(f"{num_files} open files: a checkpoint or the workers run out of them", advice)
    return warn(f"{num_files:,} open files: many workers or NCCL connections run out of them", advice)


def check_shm(machine: Machine) -> Finding:
    """Is there enough shared memory for what workers and NCCL hand over?"""
    num_workers = machine.setting("num_workers", 0) if machine.has_config else 0
    num_gpus = len(machine.gpus) if machine.has_driver else 0
    return judge_shm(_SHM, needs=num_workers > 0 or num_gpus > 1)


def judge_shm(path: Path, *, needs: bool) -> Finding:
    """Judge its size; `needs`: a run has workers or more than one GPU."""
    advice = "docker run --shm-size=8g, or a memory-backed volume at /dev/shm in Kubernetes."
    if not path.is_dir():
        return (warn if needs else lambda found, _: not_applicable(found))(f"there is no {path}", advice)
    usage = shutil.disk_usage(path)
    found = f"{usage.total / 2**20:,.0f} MiB, {usage.free / 2**20:,.0f} MiB free"
    if usage.free < _SMALL_SHM and needs:
        return warn(f"{found}, little for workers or NCCL", advice)
    return ok(found)


def check_clock(machine: Machine) -> Finding:
    """Do the clocks go, and do the machine and the file system agree about the time?"""
    from jaxtrain.doctor.storage import nearest

    directory = nearest(machine.workdir or Path())
    before, started = time.time(), time.monotonic()
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
            written: float | None = os.fstat(file.fileno()).st_mtime
    except OSError:  # the row of the workdir tells it
        written = None
    time.sleep(_CLOCK_SECS)
    return judge_clock(before, time.time(), time.monotonic() - started, written)


def judge_clock(before: float, after: float, secs: float, written: float | None) -> Finding:
    """Judge two readings of the wall clock, `secs` of the monotonic clock apart, and the time of a file in between."""
    year = time.gmtime(after).tm_year
    if secs <= 0:
        return fail("the monotonic clock stands still", "Look at the clock source of the kernel or hypervisor.")
    if not _RELEASED <= year < _RELEASED + 50:
        return fail(f"the year is {year}", "Set the clock, and let a time server keep it: certificates fail too.")
    if abs(after - before - secs) > 1.0:
        return warn("the wall clock was set while this looked at it", "Let a time server slew it instead.")
    if written is not None and not before - _FILE_SECS <= written <= after + _FILE_SECS:
        found = f"the file system's clock is {written - (before + after) / 2:+.0f} s off this machine's"
        return warn(found, "Let a time server keep both: the age of locks and files is told by them.")
    return ok(time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(after)))


def _is_true(value: str) -> bool:
    return value.lower() in ("1", "true", "yes", "on", "t", "y")


def _flag(text: str) -> str:
    return text.partition("=")[0]
