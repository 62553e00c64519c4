"""Configs that no test trains in full: they are accepted and of the published size, and shrunk by flags they train."""

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
import PIL.Image
import pytest

from jaxtrain.assembly import assemble
from jaxtrain.check import checked
from jaxtrain.config import load, parse
from jaxtrain.errors import JaxtrainError
from jaxtrain.evaluate import Evaluator
from tests.runner import ROOT

MODEL = "task.model."


@dataclasses.dataclass(frozen=True)
class Published:
    """What a config needs from its user, how many parameters it has, and flags that make it tiny."""

    num_params: int
    shrink: Sequence[str]
    data: str = ""  # the option that names the files


TRANSFORMER = ("num_layers=1", "embed=16", "heads=2", "max_seq=16")
SMALL_TRANSFORMER = [*(MODEL + option for option in TRANSFORMER), "data.seq=16", "data.vocab_size=50"]
SMALL_CROPS = ["data.transforms.crop.size=32"]
SMALL_CROPS += [f"evals.validation.data.transforms.crop.{option}=32" for option in ("size", "resize")]
SMALL_VIT = [MODEL + option for option in ("num_layers=1", "embed=16", "heads=2")]
SMALL_RESNET = [MODEL + "stage_sizes=(1,)", MODEL + "width=4"]
CONFIGS = {
    "vit_digits": Published(102_666, SMALL_VIT),
    "gpt2_124m": Published(124_439_808, SMALL_TRANSFORMER, "files"),
    "llama_1b": Published(
        1_235_814_400, [*SMALL_TRANSFORMER, MODEL + "kv_heads=1", MODEL + "head_dim=8", MODEL + "mlp=64"], "files"
    ),
    "vit_b16": Published(86_567_656, [*SMALL_CROPS, *SMALL_VIT], "root"),
    "resnet50": Published(25_557_032, [*SMALL_CROPS, *SMALL_RESNET], "root"),
}
GIVEN = [name for name, published in CONFIGS.items() if published.data]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random tokens and pictures where a user's own would be."""
    root = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    for dtype in ("uint16", "uint32"):
        np.save(root / f"{dtype}.npy", rng.integers(50, size=9000).astype(dtype))
    for number in range(16):
        path = root / "pictures" / f"class{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.fromarray(rng.integers(0, 256, (40 + number, 60, 3)).astype(np.uint8)).save(path)
    return root


def data_flags(name: str, folder: Path) -> list[str]:
    option = CONFIGS[name].data
    path = folder / {"gpt2_124m": "uint16.npy", "llama_1b": "uint32.npy"}.get(name, "pictures")
    return [f"{place}.{option}={path}" for place in ("data", "evals.validation.data")] if option else []


def load_config(name: str, *flags: str):
    return load(f"{ROOT}/configs/{name}.py", flags)


def test_every_config_is_tested_here_or_trained_in_full():
    trained = {path.stem.removesuffix("_test") for path in (ROOT / "tests" / "results").glob("*_test.py")}
    assert {path.stem for path in (ROOT / "configs").glob("*.py")} == trained | set(CONFIGS)


@pytest.mark.parametrize("name", CONFIGS)
def test_in_full_it_fits_eight_devices_and_has_the_published_number_of_parameters(name, folder):
    # So little data would be over before the warmup is.
    flags = ["duration=90_000 steps"] if CONFIGS[name].data else []
    config = checked(load_config(name, *data_flags(name, folder), *flags))
    params = assemble(config).abstract_state.params
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params)) == CONFIGS[name].num_params


@pytest.mark.parametrize("name", CONFIGS)
def test_shrunk_it_trains_two_steps_and_evaluates(name, folder):
    flags = ["duration=2 steps", "batch_size=8", "accumulation.microbatches=1", "schedule.warmup=1 steps"]
    flags += ["data.num_workers=0", "evals.validation.batch_size=8"]
    config = parse(load_config(name, *data_flags(name, folder), *CONFIGS[name].shrink, *flags)).checked()
    experiment = assemble(config, devices=jax.devices()[:1])
    step, state = experiment.compile_train_step(), experiment.init_state()
    losses, before = [], jax.device_get(state.params)
    with contextlib.closing(experiment.loader(0)) as loader:
        for batch in itertools.islice(loader, 2):
            state, metrics = step(state, experiment.place(batch.arrays))
            losses.append(float(metrics["loss"].compute()))
    assert losses[0] != losses[1]
    assert all(0 < loss < math.inf for loss in losses)
    moved = jax.tree.map(lambda old, new: bool(np.any(old != new)), before, jax.device_get(state.params))
    assert all(jax.tree.leaves(moved)), moved
    evaluation = next(evaluation for evaluation in experiment.evaluations if evaluation.name == "validation")
    evaluator = Evaluator(experiment.compile_eval_step)
    scalars = evaluator.run(evaluation, state.params, state.model_state, lambda: False)
    assert 0 < scalars["loss"] < math.inf


@pytest.mark.parametrize("name", GIVEN)
def test_without_the_users_data_it_says_what_is_missing(name, folder):
    training, validation = data_flags(name, folder)
    with pytest.raises(JaxtrainError, match=rf"--config\.data\.{CONFIGS[name].data}=: is missing"):
        checked(load_config(name, validation))
    # Left out, the validation files are not those of training.
    with pytest.raises(JaxtrainError, match=f"{CONFIGS[name].data}='': no such file|root='' does not exist"):
        assemble(checked(load_config(name, training, *CONFIGS[name].shrink, "duration=90_000 steps")))
