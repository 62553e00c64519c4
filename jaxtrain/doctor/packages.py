"""Python and the installed packages: whether they are there, new enough, and fit each other."""

import importlib.metadata
import platform
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from jaxtrain.doctor.finding import Finding, fail, ok, warn
from jaxtrain.doctor.machine import Machine

_PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
SHOWN = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "tensorboardX")
# Name -> (version, requirements); None: it is not installed.
Read = Callable[[str], tuple[str, list[str]] | None]


def check_python(machine: Machine) -> Finding:
    """Is this Python one that the package is made for?"""
    del machine
    return judge_python(platform.python_version(), _own()[0])


def judge_python(version: str, required: str) -> Finding:
    """Compare a version with a specifier such as ">=3.11"."""
    from packaging.specifiers import SpecifierSet  # here, so that its absence is told by the row that needs it

    if SpecifierSet(required).contains(version, prereleases=True):
        return ok(version)
    return fail(
        f"{version}, needs {required}", "Make a virtual environment with a Python that fits, and install again."
    )


def check_packages(machine: Machine) -> Finding:
    """Is everything installed that this package asks for, and new enough?"""
    del machine
    unmet = [told for _, told in unmet_of(_own()[1], installed)]
    if unmet:
        return fail("; ".join(unmet), "Install again: pip install -r requirements.lock, or pip install -e .")
    versions = ((name, installed(name)) for name in SHOWN)
    return ok(", ".join(f"{name} {found[0]}" for name, found in versions if found))


def check_fit(machine: Machine) -> Finding:
    """Do the packages below those fit each other, and the CUDA plugin to JAX?"""
    del machine
    return judge_fit(_own()[1], installed, _plugins())


def judge_fit(requirements: Iterable[str], read: Read, plugins: Iterable[str]) -> Finding:
    """Follow requirements to the end; `plugins` are names of installed packages that JAX loads for a GPU."""
    jax = read("jax")
    plugins = list(plugins)
    wrong = [told for _, told in _closure([*requirements, *plugins], read)]
    for name in plugins:
        found = read(name)
        if found and jax and found[0] != jax[0]:
            wrong.append(f"{name} is {found[0]} and jax {jax[0]}")
    if wrong:
        advice = f"Install versions that belong together: {_command(plugins)} moves jax, jaxlib and plugins."
        return fail("; ".join(dict.fromkeys(wrong)), advice if plugins else "Install again: pip install -e .")
    optional = [told for name in plugins for _, told in _below_plugin(name, read)]
    if optional:
        return warn("; ".join(optional), f"{_command(plugins)} brings the CUDA libraries that fit.")
    return ok("; ".join(f"{name} {(read(name) or ('',))[0]}" for name in plugins) or "all requirements are met")


def unmet_of(requirements: Iterable[str], read: Read, extra: str = "") -> Iterator[tuple[str, str]]:
    """Give (name, what is wrong) of each requirement that applies here and is not met."""
    for requirement in _applying(requirements, extra):
        found = read(requirement.name)
        if found is None:
            yield requirement.name, f"{requirement.name} is not installed, needs {requirement.specifier or 'any'}"
        elif not requirement.specifier.contains(found[0], prereleases=True):
            yield requirement.name, f"{requirement.name} is {found[0]}, needs {requirement.specifier}"


def _closure(requirements: Iterable[str], read: Read) -> Iterator[tuple[str, str]]:
    """What is unmet of these requirements, of theirs, and so on; each package is looked at once."""
    waiting, seen = [("", list(requirements))], set()
    while waiting:
        by, wanted = waiting.pop()
        for name, told in unmet_of(wanted, read):
            yield name, f"{told} by {by}" if by else told
        for requirement in _applying(wanted, ""):
            found = read(requirement.name)
            if found and _plain(requirement.name) not in seen:
                seen.add(_plain(requirement.name))
                waiting.append((requirement.name, found[1]))


def _below_plugin(name: str, read: Read) -> Iterator[tuple[str, str]]:
    """What is installed of the CUDA libraries and does not fit; one that is not may come with the system."""
    found = read(name)
    if found:
        for library, told in unmet_of(found[1], read, extra="with-cuda"):
            if read(library) is not None:
                yield library, f"{told} by {name}"


def _applying(requirements: Iterable[str], extra: str) -> Iterator[Any]:
    from packaging.requirements import InvalidRequirement, Requirement

    for text in requirements:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:  # of an old package; pip would refuse it too
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement


def installed(name: str) -> tuple[str, list[str]] | None:
    """Read version and requirements from the metadata of an installed package."""
    try:
        found = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    return found.version, found.requires or []


def _own() -> tuple[str, list[str]]:
    """Give what this package needs: (Python, requirements). A checkout that is not installed says it in its file."""
    try:
        found = importlib.metadata.distribution("jaxtrain")
        return str(found.metadata["Requires-Python"] or ""), found.requires or []
    except importlib.metadata.PackageNotFoundError:
        project = tomllib.loads(_PYPROJECT.read_text())["project"]
        return project["requires-python"], project["dependencies"]


def _plugins() -> list[str]:
    """Give the names of the installed packages with JAX's code for GPUs."""
    names = {str(found.metadata["Name"] or "") for found in importlib.metadata.distributions()}
    return sorted(_plain(name) for name in names if re.fullmatch(r"jax-(cuda|rocm)\d+-(plugin|pjrt)", _plain(name)))


def _command(plugins: list[str]) -> str:
    """The command that installs the newest of what goes with these plugins."""
    extra = next((match[0] for name in plugins if (match := re.search(r"(cuda|rocm)\d+", name))), "cuda12")
    return f"pip install -U 'jax[{extra}]'"


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
