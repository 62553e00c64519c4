"""Weights for a fresh run: read from another run's checkpoint or a safetensors file, renamed, fitted and placed.

Names are the paths that the table of a run's start shows, "block/attention/query/kernel"; what a model keeps beside its
parameters, such as batch statistics, is below "model_state/". Nothing of a loss's history comes along: the step, the
optimizer and the position in the data begin anew.
"""

import dataclasses
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from safetensors import SafetensorError, safe_open

from jaxtrain.checkpoint import Checkpoints, leaves, restore, verify
from jaxtrain.checkpoint.leaves import Leaf
from jaxtrain.checkpoint.manifest import DamagedError
from jaxtrain.config import schema
from jaxtrain.errors import CheckpointError, ConfigError, Problem
from jaxtrain.experiment import Experiment
from jaxtrain.step import TrainState
from jaxtrain.typing import Array, ModelState, Params

_logger = logging.getLogger(__name__)
_MAX_LISTED = 20  # leaves of one kind in a report
_WAYS_OUT = (
    "In init_from, rename.NAME.match and .replace name saved leaves as the model does, keep lets leaves of the model "
    "keep their initial values, drop leaves saved ones out, and cast converts floats where that loses bits."
)


@dataclasses.dataclass(frozen=True)
class Source:
    """Where weights are read.

    label: for a person.   leaves: what is there, by name.   read: gives the named arrays with the dtypes and shardings
    of their descriptions; reads no other bytes.
    """

    label: str
    leaves: Mapping[str, Leaf]
    read: Callable[[Mapping[str, jax.ShapeDtypeStruct]], dict[str, Array]]


def state_at(experiment: Experiment, checkpoints: Checkpoints, step: int) -> TrainState:
    """Restore the state of a step; for step 0 make it, with other weights where the config names some.

    Raises ConfigError or CheckpointError.
    """
    init_from = experiment.config.init_from
    if not step:
        return experiment.init_state(load(init_from, experiment.abstract_state))
    if init_from.path:
        _logger.info("init_from is not used: this run goes on from its own checkpoint of step %d", step)
    return checkpoints.restore(step, experiment.abstract_state)


def check(init_from: schema.InitFrom, abstract_state: TrainState, workdir: Path) -> None:
    """Raise what `load` would raise, and refuse weights that are in `workdir`, which is about to be set aside."""
    if not init_from.path:
        return
    if Path(init_from.path).resolve().is_relative_to(workdir.resolve()):
        allowed = "it is in the workdir of this run, which --fresh sets aside"
        raise ConfigError([Problem("init_from.path", init_from.path, allowed, "Give the new run another --workdir.")])
    _fitted(init_from, open_source(init_from.path), _wanted(abstract_state))


def load(init_from: schema.InitFrom, abstract_state: TrainState) -> tuple[Params, ModelState] | None:
    """Read the weights that fit into `(params, model_state)`, with None for each leaf that keeps its initial values.

    They get the dtypes and shardings of `abstract_state`. None altogether where the config names no weights. Raises
    ConfigError with a report of all that does not fit, or CheckpointError for a damaged source.
    """
    if not init_from.path:
        return None
    source, wanted = open_source(init_from.path), _wanted(abstract_state)
    taken = _fitted(init_from, source, wanted)
    arrays = source.read({taken[name]: wanted[name] for name in taken})
    converted = [name for name in taken if source.leaves[taken[name]].dtype != str(wanted[name].dtype)]
    told = [f"{len(taken)} leaves of {len(wanted)} from {source.label}"]
    told += [f"{len(converted)} converted to the dtypes of this run: {_few(converted)}"] if converted else []
    initial = [name for name in wanted if name not in taken]
    told += [f"{len(initial)} with new values: {_few(initial)}"] if initial else []
    _logger.info("weights: %s", "; ".join(told))
    tree = (abstract_state.params, abstract_state.model_state)
    # In the order of _wanted, which is that of this tree.
    return jax.tree.unflatten(jax.tree.structure(tree), [arrays.get(taken.get(name, "")) for name in wanted])


def open_source(path_text: str) -> Source:
    """Open a workdir (its newest checkpoint), one of its `checkpoints/<step>`, or a `.safetensors` file.

    Raises ConfigError if it is none of these, CheckpointError if it is damaged: an older checkpoint is not taken in its
    place without being asked for.
    """
    path = Path(path_text).expanduser()
    if path.suffix == ".safetensors" and path.is_file():
        return _open_safetensors(path)
    if (path / "checkpoints").is_dir():
        numbered = verify.numbered(path / "checkpoints").values()
        path = next((found for found in numbered if not verify.is_foreign(found)), path)
    if not path.name.isdecimal() or verify.is_foreign(path):
        allowed = "there is no checkpoint and no .safetensors file"
        fix = "Name a workdir, one of its checkpoints/<step>, or a .safetensors file."
        raise ConfigError([Problem("init_from.path", path_text, allowed, fix)])
    return _open_checkpoint(path)


def _open_checkpoint(path: Path) -> Source:
    path = path.absolute()
    try:
        manifest = verify.verify(path)
    except DamagedError as reason:
        others = [str(step) for step, other in verify.numbered(path.parent).items() if other.name != path.name]
        fix = f" Others there are of steps {', '.join(others)}." if others else ""
        raise CheckpointError(f"--config.init_from.path: the checkpoint {path} is damaged: {reason}.{fix}") from reason
    saved = {_short(name): name for name in manifest.leaves if re.match("(params|model_state)(/|$)", name)}
    averages = {name: re.sub("^params", "ema", full) for name, full in saved.items() if full.startswith("params")}
    averages = {name: full for name, full in averages.items() if full in manifest.leaves}
    saved |= averages
    label = f"{path}" + (", the moving average (ema) of the parameters" if averages else "")

    def read(abstract: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, Array]:
        arrays = restore.read_leaves(path, {saved[name]: leaf for name, leaf in abstract.items()})
        return {name: arrays[saved[name]] for name in abstract}

    return Source(label, {name: manifest.leaves[full] for name, full in saved.items()}, read)


def _open_safetensors(path: Path) -> Source:
    try:
        with safe_open(path, framework="np") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            full = {_short(name): name for name in slices}
            found = {name: _describe(slices[full[name]]) for name in full}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"--config.init_from.path: {path} is damaged or no safetensors file: {error}.") from error

    def read(abstract: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, Array]:
        with safe_open(path, framework="np") as file:

            def place(name: str, leaf: Any) -> Array:
                part = file.get_slice(full[name])  # each device's part is read by itself
                return jax.make_array_from_callback(
                    leaf.shape, leaf.sharding, lambda index: part[index].astype(leaf.dtype)
                )

            return {name: place(name, leaf) for name, leaf in abstract.items()}

    return Source(str(path), found, read)


def _describe(part: Any) -> Leaf:
    kind, bits = re.fullmatch(r"([A-Z]+?)(\d*)", part.get_dtype()).groups()  # type: ignore[union-attr]
    words = {"F": "float", "BF": "bfloat", "I": "int", "U": "uint", "BOOL": "bool"}
    return Leaf(tuple(part.get_shape()), words.get(kind, kind) + bits)


def _short(name: str) -> str:
    return name.removeprefix("params/")


def _wanted(abstract_state: TrainState) -> dict[str, Any]:
    """Name the leaves that weights could be for, parameters first."""
    parts = {"params": abstract_state.params}, {"model_state": abstract_state.model_state}
    return {_short(name): leaf for part in parts for name, leaf in leaves.named(part).items()}


def _fitted(init_from: schema.InitFrom, source: Source, wanted: Mapping[str, Any]) -> dict[str, str]:
    """Give name in the model -> name in the source of each leaf to take over. Raises ConfigError for all the others."""
    problems: list[Problem] = []
    kept = _matching("keep", init_from.keep, wanted, problems)
    dropped = _matching("drop", init_from.drop, source.leaves, problems)
    renamed = _renamed([name for name in source.leaves if name not in dropped], init_from.rename, problems)
    described = leaves.describe(dict(wanted))
    unexpected = [f"{saved}: {source.leaves[saved]}" for name, saved in renamed.items() if name not in wanted]
    missing = [f"{name}: {described[name]}" for name in wanted if name not in renamed and name not in kept]
    both = {name: renamed[name] for name in wanted if name in renamed and name not in kept}
    mismatched = [
        f"{name}: saved {source.leaves[saved]}, wanted {described[name]}"
        for name, saved in both.items()
        if not _fits(source.leaves[saved], described[name], init_from.cast)
    ]
    report = [
        *_listed("missing, the model has them and the source does not", missing),
        *_listed("unexpected, the source has them and the model does not", unexpected),
        *_listed("mismatched", mismatched),
    ]
    if report:
        allowed = "\n".join(["these leaves of the source and the model differ", *report])
        problems.append(Problem("init_from.path", init_from.path, f"{allowed}\n  nothing was loaded", _WAYS_OUT))
    if problems:
        raise ConfigError(problems)
    return both


def _matching(key: str, pattern: str, names: Iterable[str], problems: list[Problem]) -> set[str]:
    """The names that a regular expression is found in; "" is found nowhere."""
    found = {name for name in names if pattern and re.search(pattern, name)}
    if pattern and not found:
        problems.append(
            Problem(f"init_from.{key}", pattern, f"nothing matches; there are {_few(names)}", "Correct it.")
        )
    return found


def _renamed(names: list[str], rename: Mapping[str, schema.Rename], problems: list[Problem]) -> dict[str, str]:
    """New name -> name. Each rule rewrites what the rules before it made."""
    now = {name: name for name in names}
    for rule, spec in rename.items():
        key = f"init_from.rename.{rule}"
        if not any(re.search(spec.match, new) for new in now.values()):
            allowed = f"nothing matches; there are {_few(now.values())}"
            problems.append(Problem(f"{key}.match", spec.match, allowed, "Correct it."))
        try:
            now = {name: re.sub(spec.match, spec.replace, new) for name, new in now.items()}
        except (re.error, IndexError) as error:
            problems.append(Problem(f"{key}.replace", spec.replace, f"{error}", "Groups of match are \\1, \\2, ..."))
    renamed: dict[str, str] = {}
    for name, new in now.items():
        if new in renamed:
            allowed = f"{renamed[new]} and {name} would both be {new}"
            problems.append(Problem("init_from.rename", ", ".join(rename), allowed, "Leave one out with drop."))
        renamed[new] = name
    return renamed


def _fits(saved: Leaf, wanted: Leaf, cast: bool) -> bool:
    """Of one shape, and of one dtype or two of floats, of which the wanted one holds every value of the other."""
    if saved.shape != wanted.shape or saved.dtype == wanted.dtype:
        return saved == wanted
    if not all("float" in leaf.dtype for leaf in (saved, wanted)):
        return False
    old, new = jnp.finfo(saved.dtype), jnp.finfo(wanted.dtype)
    return cast or bool(new.nmant >= old.nmant and new.maxexp >= old.maxexp and new.minexp <= old.minexp)


def _listed(title: str, lines: list[str]) -> list[str]:
    more = [f"    and {len(lines) - _MAX_LISTED} more"] if len(lines) > _MAX_LISTED else []
    return [f"  {title}:", *(f"    {line}" for line in lines[:_MAX_LISTED]), *more] if lines else []


def _few(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
