"""The second stage of validation: what a config means for the devices and processes it meets."""

import difflib
import math
from typing import Any

from jaxtrain import sharding
from jaxtrain.build import check_options
from jaxtrain.config import Config, Parsed, parse
from jaxtrain.duration import Duration
from jaxtrain.errors import ConfigError, Problem


def checked(config: Any) -> Config:
    """Check a config, parsed or not, for this machine. Raises ConfigError with every problem."""
    import jax  # only here: the static stage must work where JAX does not

    parsed = config if isinstance(config, Parsed) else parse(config)
    config, problems = check(parsed.config, jax.device_count(), jax.process_count())
    problems = [*parsed.problems, *problems]
    if problems:
        raise ConfigError(problems)
    return config


def check(config: Config, num_devices: int, num_processes: int) -> tuple[Config, list[Problem]]:
    """Import every target, type its options and hold the sizes against the devices.

    Gives the config with typed options, and what is wrong with it.
    """
    config, problems = check_options(config)
    problems = list(problems)
    try:
        shape = sharding.mesh_shape(config.mesh, num_devices)
    except ConfigError as error:
        return config, [*problems, *error.problems]
    problems += _batch_problems(config, shape, num_processes)
    return config, [*problems, *_best_problems(config)]


def _batch_problems(config: Config, shape: dict[str, int], num_processes: int) -> list[Problem]:
    """Every device must get as many rows of each microbatch and of each evaluation batch."""
    shards = math.prod(shape[axis] for axis in sharding.BATCH_AXES)
    axes = ", ".join(f"{axis}={shape[axis]}" for axis in sharding.BATCH_AXES)
    microbatches = config.accumulation.microbatches
    problems = []
    if config.batch_size % (shards * microbatches):
        by = f"the {shards} devices of mesh axes ({axes})"
        if microbatches > 1:
            by = f"{microbatches} microbatches times {by}, which is {shards * microbatches}"
        problems.append(_not_divisible("batch_size", config.batch_size, by, shards * microbatches))
    for name, evaluation in config.evals.items():
        size = evaluation.batch_size or config.batch_size
        if size % shards and (evaluation.batch_size or not problems):
            by = f"the {shards} devices of mesh axes ({axes})"
            problems.append(_not_divisible(f"evals.{name}.batch_size", size, by, shards))
    return problems


def _best_problems(config: Config) -> list[Problem]:
    """What tells the best checkpoint must be evaluated, and at the steps of checkpoints, not only at the last one.

    The rule: of the two periods one is a whole multiple of the other.
    """
    checkpoint, metric = config.checkpoint, config.checkpoint.best_metric
    names = list(config.evals)
    if not metric:
        if not checkpoint.keep_best:
            return []
        fix = f"Use {names[0]}/loss." if names else "Add an evaluation, as evals.validation."
        return [Problem("checkpoint.best_metric", '""', "must say what the best checkpoints are the best in", fix)]
    name = metric.partition("/")[0]
    if name not in names:
        near = difflib.get_close_matches(name, names, 1, 0.0)
        fix = f"Use {near[0]}/{metric.partition('/')[2]}." if near else ""
        return [Problem("checkpoint.best_metric", metric, f"there is no evaluation named {name}", fix)]
    every, saved = Duration.parse(config.evals[name].every), Duration.parse(checkpoint.every)
    if every is not None and saved is not None and every.meets(saved, config.batch_size):
        return []
    when = f"every {saved}" if saved else "only at the end"
    allowed = f"checkpoint.best_metric={metric} needs evaluations at checkpoints, which are made {when}"
    fix = f'Use "{saved}", or a multiple or a whole part of it.' if saved else "Set checkpoint.every too."
    return [Problem(f"evals.{name}.every", config.evals[name].every or '""', allowed, fix)]


def _not_divisible(key: str, size: int, by: str, multiple: int) -> Problem:
    below, above = size // multiple * multiple, -(-size // multiple) * multiple
    fitting = " or ".join(str(value) for value in (below, above) if value > 0)
    return Problem(key, size, f"not divisible by {by}", f"Use {fitting}.")
