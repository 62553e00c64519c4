"""The undisturbed run that the others are compared with, made once, and a directory to start others in."""

from pathlib import Path

import pytest

from tests import runner
from tests.faults import trial


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workdir of a run that nothing happened to, with a checkpoint of every third step."""
    directory = tmp_path_factory.mktemp("reference")
    trial.set_up(directory)
    with runner.Runner(cwd=directory) as cli:
        finished = cli.run(*trial.COMMAND)
    assert finished.returncode == 0, finished.output
    assert trial.saved_steps(directory / "w") == [3, 6, 9, 12]
    return directory / "w"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The current directory of the runs of a test, with config and data."""
    trial.set_up(tmp_path)
    return tmp_path
