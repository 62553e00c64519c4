"""Holds what belongs to the project as a whole: its files name no machine, its lock is in step, README can be run."""

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13")
# Split, so that this file does not match itself.
MACHINE = re.compile("(?<![\\w.}])/(?:root|home|Users|work|opt)" + "/\\w")
INDEX = re.compile("|".join(("pypi" + r"\.", "python" + "hosted", "--(extra-)?index" + "-url", "--find" + "-links")))

LEFT_OUT = re.compile(
    r"\b(importor|mark\.|pytest\.|unittest\.)" + r"(skip|xfail)|desel" + r"ect|collect_ig" + "nore|modify" + "items"
)


def project_files() -> list[Path]:
    """Give the files of the project: what git tracks, and what it would."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    paths = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    return [path for path in paths if path.is_file()]


def machine_words(text: str) -> list[str]:
    return [match.group() for pattern in (MACHINE, INDEX) for match in pattern.finditer(text)]


def lock_entries(lock: str) -> Iterator[tuple[Requirement, int]]:
    """Give each pinned requirement with its number of sha256 hashes."""
    for entry in re.split(r"\n(?=\w)", lock.split("\n", 2)[2]):
        yield Requirement(entry.split("\n")[0].rstrip(" \\")), entry.count("--hash=sha256:")


def wanted(project: dict, extra: str = "") -> Iterator[Requirement]:
    """Give what pyproject asks for, an extra's own extras included."""
    names = project["optional-dependencies"][extra] if extra else project["dependencies"]
    for requirement in map(Requirement, names):
        if requirement.name == project["name"]:
            for inner in requirement.extras:
                yield from wanted(project, inner)
        else:
            yield requirement


def out_of_step(lock: str, project: dict) -> list[str]:
    """Complain about everything `pip install -r` of the lock would leave missing, unwanted or unhashed."""
    entries = list(lock_entries(lock))
    found = [f"{pin.name} has no hash" for pin, num_hashes in entries if num_hashes == 0]
    found += [f"{pin} is not a pin" for pin, _ in entries if not re.fullmatch(r"==[^*,]+", str(pin.specifier))]
    for python in PYTHONS:
        environment = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
        pins: dict[str, list[str]] = {}
        for pin, _ in entries:
            if pin.marker is None or pin.marker.evaluate(environment):
                pins.setdefault(canonicalize_name(pin.name), []).append(str(pin.specifier).removeprefix("=="))
        found += [f"{name} has {len(pinned)} pins on {python}" for name, pinned in pins.items() if len(pinned) > 1]
        for requirement in [*wanted(project), *wanted(project, "dev")]:
            versions = pins.get(canonicalize_name(requirement.name), [])
            if not any(requirement.specifier.contains(version) for version in versions):
                found.append(f"{requirement} is not met by {versions} on {python}")
    return found


@pytest.fixture(scope="module")
def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def lock() -> str:
    return (ROOT / "requirements.lock").read_text()


def test_no_file_names_a_machine_or_a_package_index():
    found = {
        str(path.relative_to(ROOT)): words
        for path in project_files()
        if (words := machine_words(path.read_bytes().decode(errors="replace")))
    }
    assert found == {}


@pytest.mark.parametrize(
    "text", ["cd /ro" + "ot/x", "'/ho" + "me/me/runs'", "https://pyp" + "i.org/simple", "--index" + "-url=https://x"]
)
def test_a_machine_path_or_an_index_is_found(text):
    assert machine_words(text)


def test_relative_paths_and_addresses_of_papers_are_fine():
    assert machine_words("runs/opt/x {tmp}/opt/x https://arxiv.org/abs/1706.03762") == []


def test_no_test_is_left_out():
    # A closing line of pytest shows what was skipped, but with xdist not what was never selected.
    sources = {path: path.read_text() for path in (ROOT / "tests").rglob("*.py")}
    assert len(sources) > 5
    assert {str(path): match for path, source in sources.items() if (match := LEFT_OUT.search(source))} == {}
    addopts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["addopts"]
    assert [option for option in addopts if not re.match("--import-mode|--strict|-r", option)] == []
    assert LEFT_OUT.search("@pytest.mark.sk" + "ipif(True)")
    assert LEFT_OUT.search("def pytest_collection_modify" + "items(items): ...")


def test_the_licence_is_there_and_is_the_one_pyproject_names(project):
    assert project["license"] == "Apache-2.0"
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text


def test_the_lock_is_in_step_with_pyproject(lock, project):
    assert out_of_step(lock, project) == []


def test_a_stale_or_unhashed_lock_is_found(lock, project):
    newer = project | {"dependencies": ["jax>=99", "torch"]}
    assert len(out_of_step(lock, newer)) == 2 * len(PYTHONS)
    unhashed = re.sub(r"(optax==[^\\]+)(\\\n +--hash\S+ ?)+", r"\1", lock)
    assert out_of_step(unhashed, project) == ["optax has no hash"]
    assert out_of_step(lock.replace("\noptax==", "\noptax>="), project)[0].endswith("is not a pin")


def test_the_lock_names_its_command_and_holds_nothing_of_cuda(lock):
    command = lock.splitlines()[1]
    assert "uv pip compile pyproject.toml --extra=dev --universal --python-version=3.11 --generate-hashes" in command
    names = [pin.name for pin, _ in lock_entries(lock)]
    assert len(names) > 50
    assert [name for name in names if "cuda" in name or "nvidia" in name] == []


def test_the_oldest_python_gets_an_older_jax_than_the_newer_ones(lock):
    versions = {str(pin.specifier): str(pin.marker) for pin, _ in lock_entries(lock) if pin.name == "jax"}
    assert len(versions) == 2
    assert versions.pop(next(version for version in versions if version.startswith("==0.10."))).endswith('< "3.12"')
    assert next(iter(versions.values())).endswith('>= "3.12"')


def test_readme_opens_with_the_two_commands_that_ci_runs():
    block = (ROOT / "README.md").read_text().split("```bash\n")[1].split("```")[0]
    first, second = block.splitlines()
    assert first.split(" && ")[-1] == ".venv/bin/python -m jaxtrain --config=configs/code_lm.py"
    assert "--require-hashes -r requirements.lock" in first
    assert second == ".venv/bin/python -m pytest"


def test_ci_script_is_sound_and_can_be_started():
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", str(script)], check=True)
