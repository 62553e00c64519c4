"""The file systems of the workdir and of the compile cache: writable, fast enough, large enough."""

import os
import shutil
import tempfile
import time
from pathlib import Path

from jaxtrain.doctor import configured
from jaxtrain.doctor.finding import Finding, fail, not_applicable, ok, warn
from jaxtrain.doctor.machine import Machine

_NO_WORKDIR = "neither a config nor --workdir is given"
_CHUNK, _MAX_BYTES, _MIN_BYTES = 2**22, 2**26, 2**20
_WRITE_SECS = 5.0
_SLOW = 50e6  # bytes a second
_SLOW_SAVE_SECS = 300.0


def nearest(path: Path) -> Path:
    """Give the path, or the directory above it that exists."""
    path = Path(os.path.abspath(path))
    return next((parent for parent in (path, *path.parents) if os.path.lexists(parent)), Path("/"))


def check_workdir(machine: Machine) -> Finding:
    """Can the run write where it would?"""
    if machine.workdir is None:
        return not_applicable(_NO_WORKDIR)
    return judge_workdir(machine.workdir, is_default=machine.given_workdir is None)


def judge_workdir(workdir: Path, *, is_default: bool) -> Finding:
    """Write into the workdir and its parts, or into the directory that it would be made in."""
    workdir = Path(os.path.abspath(workdir))
    place = nearest(workdir)
    advice = "Give another --workdir=, or make this one writable."
    if not place.is_dir():
        return fail(f"{place} is a file", advice)
    if not is_default and place not in (workdir, workdir.parent):
        return fail(f"the parent {workdir.parent} does not exist", "Make it, if it is not a typo or a lost mount.")
    parts = [workdir / name for name in ("checkpoints", "logs", "tensorboard", "autotune")]
    for directory in [place, *(part for part in parts if place == workdir and os.path.lexists(part))]:
        if (trouble := _written(directory)) is not None:
            return fail(f"{directory} cannot be written: {trouble}", advice)
    return ok(f"{workdir} is writable" if place == workdir else f"{workdir} can be made in {place}")


def _written(directory: Path) -> str | None:
    """Write a block there, as the run would; chmod does not say what root may do. None: it worked."""
    try:
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".doctor-") as file:
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.strerror or str(error)
    return None


def check_speed(machine: Machine) -> Finding:
    """How fast does a checkpoint get onto the disk?"""
    if machine.workdir is None:
        return not_applicable(_NO_WORKDIR)
    directory = _checkpoints_place(machine.workdir)
    return judge_speed(directory, configured.state(machine)["num_bytes"])


def judge_speed(directory: Path, checkpoint_bytes: int) -> Finding:
    """Write for a while and wait until it is on the disk."""
    try:
        size = min(_MAX_BYTES, shutil.disk_usage(directory).free // 8)
        if size < _MIN_BYTES:
            return not_applicable("too little room to measure")
        num_bytes, secs = _measure(directory, size)
    except OSError as error:
        return not_applicable(f"cannot be written: {error.strerror}")
    rate = num_bytes / max(secs, 1e-6)
    found = f"{rate / 1e6:,.0f} MB/s with fsync"
    needed = checkpoint_bytes / rate
    if checkpoint_bytes:
        found += f"; a checkpoint of {checkpoint_bytes / 1e6:,.1f} MB takes about {needed:.1f} s"
    if rate < _SLOW or needed > _SLOW_SAVE_SECS:
        return warn(found, "A faster disk for --workdir; a longer checkpoint.every leaves time between saves.")
    return ok(found)


def _measure(directory: Path, size: int) -> tuple[int, float]:
    """Give (bytes, seconds) of a write with fsync that ends after some seconds."""
    chunk, done = os.urandom(min(_CHUNK, size)), 0
    with tempfile.TemporaryFile(dir=directory) as file:
        started = time.monotonic()
        while done < size and time.monotonic() - started < _WRITE_SECS:
            done += file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        return done, time.monotonic() - started


def check_space(machine: Machine) -> Finding:
    """Is there room for the checkpoints that the run will keep?"""
    if machine.workdir is None:
        return not_applicable(_NO_WORKDIR)
    directory = _checkpoints_place(machine.workdir)
    state = configured.state(machine)
    present = _bytes_below(machine.workdir / "checkpoints")
    return judge_space(shutil.disk_usage(directory).free, present, state["num_bytes"], state["num_checkpoints"])


def judge_space(free: int, present: int, num_bytes: int, num_checkpoints: int) -> Finding:
    """Judge bytes that are free by those of each checkpoint; `present` of them are in the workdir already."""
    if not num_bytes:
        if free < _MIN_BYTES:
            return fail(f"{free:,} bytes free", "Make room.")
        return ok(f"{free / 1e9:,.1f} GB free; what the run needs is not known")
    total = num_bytes * num_checkpoints
    needed = max(total - present, num_bytes)  # one is written before an old one goes
    found = f"{_mb(free)} free, {_mb(needed)} needed for {num_checkpoints} checkpoints of {_mb(num_bytes)}"
    found += f", {_mb(present)} of which are there" if present else ""
    if free < needed:
        return fail(found, "Make room, or keep fewer: checkpoint.keep_last, keep_best and keep_every.")
    if free < needed * 1.1 + _MIN_BYTES:
        return warn(f"{found}: little is left for logs and others", "Make room.")
    return ok(found)


def check_compile_cache(machine: Machine) -> Finding:
    """Can compiled programs be kept for the next start?"""
    setting = machine.setting("compile_cache", "auto") if machine.has_config else "auto"
    environ = machine.environ
    if setting == "":
        return not_applicable("compile_cache is off")
    if setting == "auto" and environ.get("JAX_COMPILATION_CACHE_DIR"):
        return judge_compile_cache(environ["JAX_COMPILATION_CACHE_DIR"], is_jax=True)
    from jaxtrain.compile_cache import default_directory

    return judge_compile_cache(str(default_directory()) if setting == "auto" else setting, is_jax=False)


def judge_compile_cache(setting: str, *, is_jax: bool) -> Finding:
    """Judge a directory as a run would; `is_jax`: JAX's own variable names it, who looks less closely."""
    from jaxtrain.compile_cache import refusal

    if "://" in setting:
        return not_applicable(f"{setting} is no directory")
    directory = Path(setting).expanduser()
    place = nearest(directory)
    trouble = _written(place) if place.is_dir() else "it is a file"
    if trouble is None and place == Path(os.path.abspath(directory)) and not is_jax:
        trouble = refusal(directory)
    if trouble is not None:
        advice = "Every start compiles anew. Name another with --config.compile_cache=DIR."
        return warn(f"{directory} is not used: {trouble}", advice)
    return ok(str(directory))


def _checkpoints_place(workdir: Path) -> Path:
    """The directory that checkpoints are written below, which may be a mount of its own."""
    place = nearest(workdir / "checkpoints")
    return place if place.is_dir() else place.parent


def _bytes_below(directory: Path) -> int:
    """Bytes of the files below a directory. Some may go while this looks."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except OSError:
                continue
    return total


def _mb(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.1f} MB"
