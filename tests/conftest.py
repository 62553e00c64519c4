"""What every test process needs before it imports JAX: the CPU, eight simulated devices, one compile cache."""

import importlib.metadata
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests import runner

# Set before any test module can import JAX; subprocesses of `runner` get the same, with one device unless they ask.
os.environ.update(runner.environment(num_devices=8))
# Compiling is most of what tests in this process do. Runs in subprocesses are compiled as users' are.
os.environ["XLA_FLAGS"] += " --xla_backend_optimization_level=0"
if importlib.metadata.version("jaxlib").startswith("0.10."):  # later ones do not know the flag, and refuse to start
    os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"

# CI tries the same examples each time, so that what it says is about the change; everywhere else they are new ones.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[runner.Runner]:
    """Start `python -m jaxtrain ...` in `tmp_path`; whatever still runs at the end of the test is killed."""
    with runner.Runner(cwd=tmp_path) as started:
        yield started


@pytest.fixture(scope="session")
def text_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workdir of a finished language model's run, trained once (tests/text_run.py). Tests read it or copy it."""
    from tests import text_run

    return text_run.trained(tmp_path_factory.mktemp("text_run"))
