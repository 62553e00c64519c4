"""Rows 32 and 33 of the faults: configs that are refused, all at once and with what works, and odd ones that run."""

import itertools
import re

import numpy as np
import pytest

from jaxtrain import train
from jaxtrain.check import check
from jaxtrain.config import parse
from jaxtrain.errors import NonFiniteError
from tests import runner
from tests.faults.trial import COMMAND

NUM_ODD_CONFIGS = 24


def messages(told: str) -> dict[str, str]:
    """What a refusal says of each key."""
    assert told.startswith("The config has ")
    found = dict(re.findall(r"^  --config\.([\w.]+)=(.*)$", told, re.MULTILINE))
    assert told.startswith(f"The config has {len(found)} problem")
    return found


def test_every_problem_of_a_command_is_told_in_one_go(cli, here):
    wrong = ("batch_sze=8", "duration=-5 steps", "optimizer.learning_rate=nan", "optimizer.b7=1")
    config = f"--config={runner.ROOT}/configs/code_lm.py"
    ended = cli.run(config, "--workdir=w", *(f"--config.{flag}" for flag in wrong))
    assert ended.returncode == 2, ended.output
    assert "Traceback" not in ended.output
    told = messages(ended.stderr)
    assert told.keys() == {"batch_sze", "duration", "optimizer.learning_rate", "optimizer.b7"}
    assert "--config.batch_size=8" in told["batch_sze"]
    assert "5 steps" in told["duration"].partition(":")[2]
    assert "finite" in told["optimizer.learning_rate"]
    assert "--config.optimizer.learning_rate=" in told["optimizer.learning_rate"]
    assert "optax:adamw" in told["optimizer.b7"]
    assert "--config.optimizer.b1=1" in told["optimizer.b7"]
    assert not (here / "w").exists()


def test_wrong_types_lengths_and_ranges_are_told_with_the_nearest_right_value(cli, here):
    wrong = {
        "seed": "4294967296",
        "batch_size": "8.5",
        "log.tensorboard": "perhaps",
        "task.model.features": "(8, 'x')",
        "task.model.dropuot": "0.1",
        "task.model.num_outputs": "three",
        "accumulation.engine": "multistep",
        "optimizer.learning_rate": "inf",
        "mesh.fdsp": "8",
        "data.transfroms.crop.type": "a:b",
    }
    ended = cli.run(*COMMAND, *(f"--config.{key}={value}" for key, value in wrong.items()))
    assert ended.returncode == 2, ended.output
    assert "Traceback" not in ended.output
    told = messages(ended.stderr)
    assert len(told) == len(wrong), told
    for key, right in {
        "seed": "--config.seed=4294967295",
        "batch_size": "--config.batch_size=8",
        "task.model.dropuot": "dropout",
        "accumulation.engine": "--config.accumulation.engine=multisteps",
        "mesh.fdsp": "--config.mesh.fsdp=8",
    }.items():
        assert right in told[key]


def test_sizes_that_do_not_fit_the_devices_are_told_by_the_command(cli, here):
    ended = cli.run(*COMMAND, "--config.mesh.data=3", "--config.mesh.fsdp=2", num_devices=4)
    assert ended.returncode == 2, ended.output
    assert "there are 4 devices" in ended.stderr
    assert "--config.mesh.data=2 --config.mesh.fsdp=2" in ended.stderr
    sizes = ("--config.batch_size=10", "--config.evals.validation.batch_size=7")
    ended = cli.run(*COMMAND, *sizes, num_devices=4)
    assert ended.returncode == 2, ended.output
    told = messages(ended.stderr)
    assert "Use 8 or 16." in told["batch_size"]
    assert "Use 4 or 8." in told["evals.validation.batch_size"]


def problems(keys: dict, num_devices: int) -> list:
    """What is wrong with sizes on so many devices."""
    nested: dict = {"duration": "1 steps", "task": {"type": "builtins:object"}, "data": {"type": "builtins:object"}}
    for key, value in keys.items():
        group, _, name = key.rpartition(".")
        (nested.setdefault(group, {}) if group else nested)[name] = value
    parsed = parse(nested)
    return [*parsed.problems, *check(parsed.config, num_devices, 1)[1]]


SIZES = [
    {"mesh.data": data, "mesh.fsdp": fsdp, "batch_size": batch_size, "accumulation.microbatches": microbatches}
    for data, fsdp in itertools.product((-1, 1, 2, 3, 5, 8, 100), repeat=2)
    for batch_size, microbatches in ((24, 1), (100, 1), (7, 3), (1, 2))
]


@pytest.mark.parametrize("num_devices", [1, 6, 8])
def test_the_values_that_a_refusal_names_work(num_devices):
    num_refused = 0
    for keys in SIZES:
        tried = dict(keys)
        while found := problems(tried, num_devices):
            num_refused += 1
            problem = found[0]
            flags = re.findall(r"--config\.([\w.]+)=(-?\d+)", problem.fix.partition(" or ")[0])
            values = flags or [(problem.key, value) for value in re.findall(r"\d+", problem.fix)[:1]]
            assert values, problem
            for choice in problem.fix.removeprefix("Use ").split(" or "):
                again = re.findall(r"--config\.([\w.]+)=(-?\d+)", choice) or [(problem.key, choice.rstrip("."))]
                fixed = tried | {key: int(value) for key, value in again}
                left = [str(other) for other in problems(fixed, num_devices)]
                assert not any(text.startswith(f"--config.{problem.key}=") for text in left), (tried, problem, left)
            tried |= {key: int(value) for key, value in values}
    assert num_refused > len(SIZES) / 2


# Each key at its bounds, and what is rarely combined. A value that depends on others is a function of them.
BOUNDS: dict[str, tuple] = {
    "seed": (0, 2**32 - 1),
    "duration": ("2 steps", "2.1 epochs", "33 examples", "2 step"),
    "batch_size": (16, 32),
    "compile_cache": ("auto", ""),
    "deterministic": (True, False),
    "task.model.features": ((), (1,), (3, 2)),
    "task.model.dropout": (0.0, 0.999),
    "data.shuffle": (True, False),
    "data.prefetch": (1, 50),
    "data.max_bad_examples": (0, 2**40),
    "optimizer.type": ("optax:adamw", "optax:sgd", "optax:lion", "optax:adafactor"),
    "optimizer.learning_rate": (0.0, 1e-30, 1.0, 1e-3),
    "schedule.warmup": ("", "1 steps", "1 examples"),
    "clip_norm": (0.0, 1e-30, 1e30),
    "accumulation.microbatches": (1, 2),
    "accumulation.engine": ("multisteps", "fused"),
    "accumulation.reduce": ("each", "once"),
    "accumulation.gather": ("each", "once"),
    "precision.params": ("float32", "bfloat16", "float16"),
    "precision.compute": ("float32", "bfloat16", "float16"),
    "nonfinite.policy": ("stop", "skip"),
    "nonfinite.limit": (1, 2**31 - 1),
    "mesh": ({"data": -1, "fsdp": 1}, {"data": 1, "fsdp": -1}, {"data": 2, "fsdp": 4}),
    "sharding.min_size": (0, 2**62),
    "checkpoint.every": ("1 steps", "", "1e9 steps", "0.001 seconds"),
    "checkpoint.keep_last": (1, 2**62),
    "checkpoint.best_mode": ("min", "max"),
    "checkpoint.keep_every": ("", "1 steps", "0.1 epochs"),
    "profile.steps": ("", "1:2", "2:9", "7:8"),
    "profile.num_steps": (1, 2**62),
    "log.every": ("1 steps", "", "1e18 examples", "1000 hours"),
    "log.tensorboard": (True, False),
    "evals.a.every": ("", "1 steps", "1 seconds"),
    "evals.a.batch_size": (0, 8, 64),
    "evals.a.num_batches": (0, 1, 2**40),
    "preemption.grace_secs": (0.0, 1e9),
}


def odd_config(number: int) -> dict:
    """The `number`-th odd config. Each key goes through its values round by round, each time in another order."""
    chosen = {}
    for place, (key, values) in enumerate(BOUNDS.items()):
        order = np.random.default_rng((place, number // len(values))).permutation(len(values))
        chosen[key] = values[order[number % len(values)]]
    rows = np.random.default_rng(0)
    arrays = {"image": rows.normal(size=(19, 3)).astype("float32"), "label": rows.integers(2, size=19).astype("int32")}
    model = {"type": "jaxtrain.models.mlp:MLP", "num_outputs": 2}
    source = {"type": "jaxtrain.data.arrays:Arrays", "arrays": arrays}
    task = {"type": "jaxtrain.tasks.classification:Classification", "model": model}
    config: dict = {"name": f"odd{number}", "task": task, "data": source, "evals": {"a": {}}}
    for key, value in chosen.items():
        *groups, name = key.split(".")
        group = config
        for part in groups:
            group = group.setdefault(part, {})
        group[name] = value
    return config


def test_valid_but_odd_configs_train(tmp_path):
    assert max(map(len, BOUNDS.values())) <= NUM_ODD_CONFIGS  # every key is once at each of its bounds
    for number in range(NUM_ODD_CONFIGS):
        config = odd_config(number)
        try:
            result = train(config, tmp_path / str(number))
        except NonFiniteError:
            assert config["precision"]["params"] == "float16"  # adamw's eps is 0 there
        else:
            assert result.status == "finished", config
            assert 2 <= result.step <= 3
            assert result.history[-1]["split"] == "a"


MALFORMED = """
import contextlib, io, random, sys
from jaxtrain.cli import main

random.seed(0)
keys = ["seed", "duration", "batch_size", "task", "task.type", "task.model", "task.model.features", "task.model.x.y",
        "data", "data.type", "data.path", "data.transforms.t.type", "evals", "evals.v", "evals.v.data.split",
        "evals.train.every", "optimizer", "optimizer.type", "optimizer.b1", "schedule.warmup", "mesh.data", "mesh", "",
        "callbacks.c.type", "precision.compute", "log.every", "checkpoint.keep_last", "a.b.c", "name", ".", "options"]
values = ["", "-1", "1e400", "nan", "None", "{", "{'type': 'os:system'}", "[1, 2", "(1,)", "os:system", "os.path:join",
          "jaxtrain:train", "nowhere:X", "a:b:c", "5 steps", "-5 steps", "1e999 hours", "env:NO_SUCH", "\\\\udcff",
          "\\x00", "https://a:b@c/?token=d", "9" * 5000, "True", "=", "--config", "x" * 300, "()", "lambda: 0"]
switches = ["--workdir", "--workdir=", "--config.seed", "--fresh=1", "--no", "-x", "--config=", "--config=nowhere.py",
            "--config=rows.npz", "positional"]
codes = {}
for number in range(1, int(sys.argv[1]) + 1):
    argv = ["--config=tiny.py", "--workdir=/nowhere/at/all"]
    argv += [f"--config.{random.choice(keys)}={random.choice(values)}" for _ in range(random.randrange(1, 6))]
    argv += random.sample(switches, random.choice([0, 0, 0, 1, 2]))
    random.shuffle(argv)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(argv)
    codes[code] = codes.get(code, 0) + 1
    if code != 2 or "Traceback" in out.getvalue() + err.getvalue() or not err.getvalue():
        print("SHOWN", code, argv, out.getvalue(), err.getvalue())
print(number, codes)
"""


def test_no_malformed_command_shows_a_traceback(cli, here):
    ended = cli.run("600", command=("-c", MALFORMED))
    assert ended.returncode == 0, ended.output
    assert "SHOWN" not in ended.stdout, ended.stdout
    assert int(ended.stdout.split()[0]) > 20
