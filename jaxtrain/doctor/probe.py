"""What may hang, crash or be killed, and therefore runs in a process of its own: `python -m jaxtrain.doctor.probe`.

Each fact is told as soon as it is known, as one line of JSON behind a mark, so that what went well before a hang is
known too. JAX is imported inside the functions: that is one of the things that may fail.
"""

import ctypes
import dataclasses
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxtrain.doctor.programs import MARK
from jaxtrain.redact import is_reference, redact

_QUOTED = re.compile(r"""["']env:([A-Za-z_][A-Za-z0-9_]*)["']""")
_LONGEST = 4000  # characters of a message
_NUM_TIMES = 5
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def tell(of: str, **facts: Any) -> None:
    """Write one line for the parent."""
    sys.stdout.write(f"{MARK}{json.dumps({'of': of, **facts})}\n")
    sys.stdout.flush()


def devices() -> None:
    """Import JAX, find the devices, and let each one compute a little."""
    started = time.monotonic()
    import jax

    tell("import", version=jax.__version__, path=str(Path(jax.__file__).parent), secs=time.monotonic() - started)
    import jax.numpy as jnp

    found = jax.local_devices()
    stats = [device.memory_stats() or {} for device in found]
    wrong = []
    for device in found:
        x = jax.device_put(jnp.arange(64.0).reshape(8, 8), device)
        if float((x @ x.T)[0, 7]) != sum(i * (56 + i) for i in range(8)):  # exact in every dtype of a product
            wrong.append(str(device))
    tell(
        "devices",
        platform=found[0].platform,
        kinds=[device.device_kind for device in found],
        memory=[stat.get("bytes_limit", 0) for stat in stats],
        wrong=wrong,
    )


def collectives() -> None:
    """Time an all-reduce and an all-gather over all devices of this process, and compare their results."""
    import jax
    import jax.numpy as jnp

    from jaxtrain import sharding
    from jaxtrain.config.schema import Mesh

    found = jax.local_devices()
    mesh = sharding.make_mesh(Mesh(), found)
    spec = jax.sharding.PartitionSpec(mesh.axis_names)
    num, size = len(found), 2**18 if found[0].platform == "cpu" else 2**26  # float32 on each device
    placed = jax.sharding.NamedSharding(mesh, spec)
    x = jax.jit(lambda: jnp.repeat(jnp.arange(1.0, num + 1), size), out_shardings=placed)()
    whole = jax.sharding.PartitionSpec()
    programs = {
        "psum": (lambda x: jax.lax.psum(x, mesh.axis_names), num * (num + 1) / 2, 2 * (num - 1) / num * size * 4),
        "all_gather": (lambda x: jax.lax.all_gather(x, mesh.axis_names, tiled=True), x, (num - 1) * size * 4),
    }
    for name, (program, expected, num_bytes) in programs.items():
        run = jax.jit(jax.shard_map(program, mesh=mesh, in_specs=spec, out_specs=whole, check_vma=False))
        is_right = bool((run(x) == expected).all())
        secs = []
        for _ in range(_NUM_TIMES):
            started = time.monotonic()
            jax.block_until_ready(run(x))
            secs.append(time.monotonic() - started)
        tell(name, is_right=is_right, bytes_per_sec=num_bytes / min(secs), num_devices=num)


def settings(argv: Sequence[str]) -> None:
    """Read the config and say what it asks of the machine by itself."""
    config, problems = _parsed(argv)
    tell(
        "settings",
        name=config.name,
        problems=problems,
        secrets=sorted(set(_references(config))),
        compile_cache=config.compile_cache,
        num_workers=config.data.num_workers,
        distributed=dataclasses.asdict(config.distributed),
    )


def experiment(argv: Sequence[str]) -> None:
    """Build what the config describes, say how large its checkpoints are, and read examples."""
    num_processes = int(argv[0].removeprefix("--num_processes="))
    config, _ = _parsed(argv[1:])
    import jax

    from jaxtrain.assembly import assemble
    from jaxtrain.check import check
    from jaxtrain.checkpoint import leaves
    from jaxtrain.config.schema import Mesh
    from jaxtrain.errors import ConfigError

    found = jax.local_devices()
    config, problems = check(config, len(found) * num_processes, num_processes)
    if problems:
        raise ConfigError(problems)
    if num_processes > 1:  # the others' devices are not here; shapes are the same on one
        config, found = dataclasses.replace(config, mesh=Mesh()), found[:1]
    made = assemble(config, devices=found)
    num_bytes = leaves.num_bytes(leaves.named(made.abstract_state))
    tell("state", num_bytes=num_bytes, num_checkpoints=num_checkpoints(made), num_steps=made.num_steps)
    _read("data", made.source, made.transforms, config.seed)
    for evaluation in made.evaluations:
        _read(f"evals.{evaluation.name}.data", evaluation.source, evaluation.transforms, config.seed)


def num_checkpoints(made: Any) -> int:
    """Count the checkpoints that may lie in the workdir at once, one of them still being written."""
    checkpoint = made.config.checkpoint
    many = checkpoint.keep_last + checkpoint.keep_best + 1
    if made.num_steps is None:
        return many
    keep_every = made.every("checkpoint.keep_every", checkpoint.keep_every)
    steps = range(1, made.num_steps + 1)
    num_saved = 1 + sum(made.checkpoint_every.due(step) for step in steps if step < made.num_steps)
    return min(num_saved, many + sum(map(keep_every.due, steps)))


def _read(key: str, source: Any, transforms: Sequence[Any], seed: int) -> None:
    """Read the first and the last example as training would."""
    from jaxtrain.data.reader import read_example
    from jaxtrain.errors import ExampleError

    for index in sorted({0, len(source) - 1}):
        try:
            read_example(source, transforms, index, (seed, index))
        except Exception as error:
            text = f"--config.{key}: example {index} cannot be read: {type(error).__name__}: {error}"
            raise ExampleError(text) from error
    tell(f"read {key}", num_examples=len(source))


def _parsed(argv: Sequence[str]) -> tuple[Any, str]:
    """Give the config of these flags, or of the workdir, and its problems in one text."""
    from jaxtrain.config import load, overrides, parse, split_argv
    from jaxtrain.errors import ConfigError
    from jaxtrain.workdir import Workdir

    argument, changes, rest = split_argv(argv)
    if argument is not None:
        draft = load(argument, changes)
    else:
        workdir = Path(rest[0].removeprefix("--workdir="))
        draft = overrides.apply(Workdir(workdir, create=False).read_config() or {}, changes)
    parsed = parse(draft)
    return parsed.config, str(ConfigError(parsed.problems)) if parsed.problems else ""


def _references(config: Any) -> Iterator[tuple[str, str]]:
    """Every (variable, key) of a config that refers to a secret."""
    from jaxtrain.config import flatten, to_dict

    waiting = list(flatten(to_dict(config)))
    while waiting:
        key, value = waiting.pop()
        if is_reference(value):
            yield value.removeprefix("env:"), key
        elif isinstance(value, str):  # the text of a flag, which is a dict or a list once its type is known
            yield from ((name, key) for name in _QUOTED.findall(value))
        elif isinstance(value, Mapping):
            waiting += flatten(value, f"{key}.")
        elif isinstance(value, list):
            waiting += [(key, item) for item in value]


def main(argv: Sequence[str]) -> int:
    """Run one probe. An exception is told like any other fact."""
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    name, *arguments = argv
    try:
        if name in ("devices", "collectives"):
            {"devices": devices, "collectives": collectives}[name]()
        else:
            {"settings": settings, "experiment": experiment}[name](arguments)
    except BaseException as error:  # noqa: BLE001 told to the parent, SystemExit too: an import may end the program
        from jaxtrain.config.loading import describe_failure
        from jaxtrain.errors import JaxtrainError

        text = redact(str(error)) if isinstance(error, JaxtrainError) else describe_failure(error)
        tell("error", kind=type(error).__name__, text=text[:_LONGEST])
        return 1
    return 0


if __name__ == "__main__":
    if sys.platform == "linux":  # end with the parent, however that ends
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # threads of a data source or of a driver may not end
