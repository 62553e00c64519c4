"""Real file systems for tests: a small one to fill up, a read-only one. Mounting needs root."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def small_disk(path: Path, size: str = "64k") -> Iterator[Path]:
    """Mount an empty file system of `size` at `path`, which is made."""
    path.mkdir()
    with _mounted(path, "-t", "tmpfs", "-o", f"size={size}", "tmpfs"):
        yield path


@contextlib.contextmanager
def read_only(path: Path) -> Iterator[Path]:
    """Make the directory `path` read-only by a bind mount onto itself: its mode would not stop root."""
    with _mounted(path, "--bind", str(path)):
        subprocess.run(["mount", "-o", "remount,ro,bind", str(path)], check=True)
        yield path


@contextlib.contextmanager
def _mounted(path: Path, *options: str) -> Iterator[None]:
    subprocess.run(["mount", *options, str(path)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(disk: Path) -> Path:
    """Take all room there is; returns the file to delete."""
    ballast = disk / "ballast"
    with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 512)
    return ballast
