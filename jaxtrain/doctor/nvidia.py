"""Reads what the programs of the NVIDIA driver and the dynamic linker print."""

import dataclasses
import re
from collections.abc import Mapping

# Of `nvidia-smi --query-gpu`. All are known to every driver that JAX runs with.
FIELDS = "index,name,memory.total,memory.used,driver_version,ecc.errors.uncorrected.volatile.total,mig.mode.current"
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_LIBRARY = re.compile(r"^\s*lib(\w+)\.so\.([\d.]+)\s.*=>\s*(\S+)$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One GPU. memory_mib, used_mib: its memory, and what is taken of it.   ecc_errors: None where it counts none."""

    index: int
    name: str
    memory_mib: int
    used_mib: int
    driver: str
    ecc_errors: int | None
    mig: bool


def parse_gpus(text: str) -> list[Gpu]:
    """Read the lines of `--query-gpu=FIELDS --format=csv,noheader,nounits`; what is no such line is left out."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 7 and cells[0].isdecimal():
            index, name, memory, used, driver, errors, mig = cells
            ecc_errors = int(errors) if errors.isdecimal() else None
            found.append(Gpu(int(index), name, _number(memory), _number(used), driver, ecc_errors, mig == "Enabled"))
    return found


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0  # "[N/A]": memory shared with the CPU


def parse_versions(text: str) -> tuple[str, str] | None:
    """Give (driver version, newest CUDA it runs) from the head of what `nvidia-smi` prints; None if it has none."""
    driver = re.search(r"Driver Version:\s*([\d.]+)", text)
    cuda = re.search(r"CUDA Version:\s*([\d.]+)", text)
    return (driver[1], cuda[1] if cuda else "") if driver else None


def parse_links(text: str) -> dict[tuple[int, int], str]:
    """Give the link of each pair of GPUs, such as {(0, 1): "NV18"}, from what `nvidia-smi topo -m` prints."""
    lines = [_ANSI.sub("", line).split() for line in text.splitlines()]
    header = next((cells for cells in lines if cells[:1] == ["GPU0"]), [])
    columns = [int(cell[3:]) for cell in header if re.fullmatch(r"GPU\d+", cell)]
    links: dict[tuple[int, int], str] = {}
    for cells in lines:
        if cells and re.fullmatch(r"GPU\d+", cells[0]) and len(cells) > len(columns) and cells[1] not in header:
            row = int(cells[0][3:])
            links |= {(row, column): link for column, link in zip(columns, cells[1:], strict=False) if row < column}
    return links


def parse_libraries(text: str) -> dict[str, dict[str, str]]:
    """Give {library: {version: path}} from what `ldconfig -p` prints, such as {"cudnn": {"9": "/usr/lib/..."}}."""
    found: dict[str, dict[str, str]] = {}
    for name, version, path in _LIBRARY.findall(text):
        found.setdefault(name, {}).setdefault(version, path)
    return found


def as_numbers(version: str) -> tuple[int, ...]:
    """Give a version as numbers to compare: "535.129.03" -> (535, 129, 3)."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def summary(gpus: list[Gpu]) -> str:
    """Give "8 x NVIDIA H100 80GB HBM3", or each kind with its number."""
    counts: Mapping[str, int] = {gpu.name: sum(other.name == gpu.name for other in gpus) for gpu in gpus}
    return ", ".join(f"{number} x {name}" for name, number in counts.items())
