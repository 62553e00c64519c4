import ast
import dataclasses
import inspect
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

import jaxtrain
from jaxtrain import sharding
from jaxtrain.assembly import assemble
from jaxtrain.config import Config, parse, schema
from jaxtrain.errors import ConfigError, DataError
from jaxtrain.metrics import Mean
from jaxtrain.models.mlp import MLP
from jaxtrain.tasks import Output
from jaxtrain.tasks.classification import Classification
from tests.classifier import ROWS, make_config, on_one_device


class Unreadable:
    """Rows that may be counted and not read."""

    def __len__(self):
        return 52

    def __getitem__(self, index):
        raise AssertionError("read")

    def zeros(self):
        return ROWS.zeros()


class Scale:
    """A transform that changes shapes: it has to see an example."""

    def map(self, example):
        return {**example, "image": example["image"][:2]}


@dataclasses.dataclass(frozen=True)
class CountsTokens:
    """The mean of the inputs; each example holds as many tokens as inputs."""

    vocab_size: int = 0
    seed: int = -1

    def init(self, key, batch):
        return {"w": jnp.zeros(())}, {}

    def loss(self, params, model_state, batch, key, train):
        values = batch["image"].mean(-1) * params["w"]
        return Output(Mean.of(values, batch["mask"]), {}, model_state)

    def tokens_per_example(self, example):
        return example["image"].shape[0]


@pytest.fixture(scope="module")
def experiment():
    return assemble(parse(with_accumulation()).checked())


def with_accumulation():
    config = make_config(mesh={"data": 2, "fsdp": 4}, sharding={"min_size": 0}, batch_size=16)
    config.accumulation.microbatches = 2
    config.evals.test = {"batch_size": 8}
    return config


def test_batches_are_described_as_they_will_come(experiment):
    described = {name: (x.shape, str(x.dtype)) for name, x in experiment.abstract_batch.items()}
    assert described == {
        "image": ((2, 8, 4), "float32"),
        "label": ((2, 8), "int32"),
        "mask": ((2, 8), "bool"),
    }
    loader = experiment.loader(0)
    placed = experiment.place(next(loader).arrays)
    loader.close()
    assert {name: (x.shape, str(x.dtype)) for name, x in placed.items()} == described
    assert all(
        x.sharding.is_equivalent_to(experiment.abstract_batch[name].sharding, x.ndim) for name, x in placed.items()
    )


def test_nothing_is_read_and_nothing_allocated_to_assemble():
    config = make_config()
    config.data.type = Unreadable()
    config.evals.test = {}
    before = len(jax.live_arrays())
    experiment = on_one_device(config)
    assert {leaf.shape for leaf in jax.tree.leaves(experiment.evaluations[0].zeros())} == {(8, 4), (8,)}
    del experiment
    assert len(jax.live_arrays()) == before


def test_an_eval_has_its_own_data_transforms_and_batch_size():
    config = make_config()
    config.data.transforms = {"scale": {"type": Scale()}}
    config.evals.same = {"data": {"transforms": {"scale": {"type": Scale()}}}, "every": "1 epoch"}
    config.evals.small = {"data": {"transforms": {"scale": {"type": Scale()}}}, "batch_size": 4, "num_batches": 3}
    experiment = on_one_device(config)
    same, small = experiment.evaluations
    assert experiment.abstract_batch["image"].shape == (1, 8, 2)
    assert (same.name, same.abstract_batch["image"].shape, same.num_batches) == ("same", (8, 2), None)
    assert (small.name, small.abstract_batch["image"].shape, small.num_batches) == ("small", (4, 2), 3)
    assert [step for step in range(1, 15) if same.every.due(step)] == [7, 13]


def test_an_eval_whose_examples_do_not_fit_the_model_is_told_by_its_name():
    config = make_config()
    config.data.transforms = {"scale": {"type": Scale()}}
    config.evals.plain = {"batch_size": 4}
    refused(config, "--config.evals.plain.data.type", "image: float32[4, 4]")


def test_an_every_in_a_unit_that_means_nothing_is_told_by_its_key():
    config = make_config()
    config.evals.plain = {"every": "100 tokens"}
    refused(config, "--config.evals.plain.every=100 tokens", "needs a task that counts tokens")


@pytest.mark.parametrize(
    ("duration", "num_steps", "max_secs"),
    [
        ("12 steps", 12, None),
        ("2.5 epochs", 17, None),  # 130 examples of 52
        ("100 examples", 13, None),
        ("100 tokens", 4, None),  # 32 a step
        ("90 minutes", None, 5400.0),
    ],
)
def test_a_duration_becomes_steps_or_seconds(duration, num_steps, max_secs):
    config = make_config(duration=duration)
    config.task.type = CountsTokens()
    experiment = on_one_device(config)
    assert (experiment.num_steps, experiment.max_secs) == (num_steps, max_secs)
    assert experiment.tokens_per_example == 4


def refused(config, *words):
    with pytest.raises(ConfigError) as raised:
        on_one_device(config)
    for word in words:
        assert word in str(raised.value)


def test_tokens_need_a_task_that_counts_them():
    refused(make_config(duration="100 tokens"), "--config.duration=100 tokens", "Use steps, epochs or examples.")


def test_a_schedule_that_needs_the_length_does_not_take_a_time():
    config = make_config(duration="1 hour")
    config.schedule.type = "jaxtrain.schedules:cosine"
    refused(config, "--config.schedule.type", "1 hour")


def test_a_warmup_as_long_as_the_run_is_refused():
    config = make_config()
    config.schedule.warmup = "12 steps"
    refused(config, "--config.schedule.warmup=12 steps", 'Use at most "11 steps"')


class Picky(nn.Module):
    @nn.compact
    def __call__(self, inputs):
        return nn.Dense(3)(inputs.reshape(2, 2))


@pytest.mark.parametrize("task", [Classification(MLP((8,), 3), inputs="pixels"), Classification(Picky())])
def test_a_loss_that_does_not_fit_the_data_is_told_with_the_arrays_there_are(task):
    config = make_config()
    config.task.type = task
    refused(config, "--config.task.type", "image: float32[8, 4]", "label: int32[8]", "mask: bool[8]")


class Nothing:
    def __len__(self):
        return 0

    def __getitem__(self, index):
        raise IndexError


def test_data_without_an_example_is_refused():
    config = make_config()
    config.evals.test = {"data": {"type": Nothing()}}
    with pytest.raises(DataError, match=r"--config\.evals\.test\.data: .* holds no examples"):
        on_one_device(config)


def test_the_best_metric_must_be_a_number_of_its_evaluation():
    best = {"every": "3 steps", "keep_best": 1, "best_metric": "validation/acuracy", "best_mode": "max"}
    config = make_config(evals={"validation": {"every": "3 steps"}}, checkpoint=best)
    with pytest.raises(ConfigError, match=r"no such number. Use one of validation/accuracy, validation/loss\."):
        on_one_device(config)
    config.checkpoint.best_metric = "validation/accuracy"
    on_one_device(config)


# Every key of the schema is read.

# Groups that are read under another name than their own; what has a type is built as a `spec`.
OWNERS = {
    "Eval": {"spec", "evaluation"},
    "EvalData": {"data"},
    "ShardingRule": {"rule"},
    "InitFrom": {"init_from"},
    "ParamGroup": {"group"},
    "Rename": {"rename", "spec"},
}
OPEN = {"type", "options"}


def attribute_reads(sources):
    """(owner, name) of every `owner.name` that is read."""
    reads = set()
    for source in sources:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                owner = node.value
                name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
                reads.add((name, node.attr))
    return reads


def unread(classes, reads):
    """The keys of the schema that nothing reads."""
    found = []
    for cls in classes:
        owners = OWNERS.get(cls.__name__, {cls.__name__.lower()})
        for field in dataclasses.fields(cls):
            if not any((owner, field.name) in reads for owner in owners | ({"spec"} if field.name in OPEN else set())):
                found.append(f"{cls.__name__}.{field.name}")
    return found


CLASSES = [value for value in vars(schema).values() if inspect.isclass(value) and dataclasses.is_dataclass(value)]
SOURCES = {
    path: path.read_text()
    for path in sorted(Path(jaxtrain.__file__).parent.rglob("*.py"))
    # The schema itself, and what only looks at a run.
    if not {"config", "doctor"}.intersection(path.relative_to(Path(jaxtrain.__file__).parent).parts)
}


def test_every_key_of_the_schema_is_read_outside_of_it():
    assert Config in CLASSES
    found = unread(CLASSES, attribute_reads(SOURCES.values()))
    assert set(found) == {f"Mesh.{axis}" for axis in sharding.AXES}  # which are read in one loop over their names


def test_a_key_that_nobody_reads_is_found():
    wider = dataclasses.make_dataclass("Log", [("every", str), ("colour", str)])
    assert unread([wider], attribute_reads(SOURCES.values())) == ["Log.colour"]
    without = [source for path, source in SOURCES.items() if path.name not in ("train.py", "experiment.py")]
    assert "Checkpoint.keep_last" in unread(CLASSES, attribute_reads(without))


def test_num_batches_of_data_takes_so_many_batches_of_examples():
    config = make_config()
    config.data.num_batches = 3
    config.evals.test = {}
    config.duration = "5 epochs"
    experiment = on_one_device(config)
    assert len(experiment.source) == 24
    assert experiment.num_steps == 15
    assert len(experiment.evaluations[0].source) == len(ROWS)
