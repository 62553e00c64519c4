"""`jaxtrain config`: print the config that a run would have, and where each value comes from."""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxtrain.build import RUNTIME_NAMES, check_options, import_target, signature
from jaxtrain.build.options import OPEN
from jaxtrain.build.targets import REQUIRED
from jaxtrain.cli import arguments
from jaxtrain.config import Config, flatten, parse, to_dict
from jaxtrain.config.modes import MODES
from jaxtrain.config.plain import is_group
from jaxtrain.config.raw import shown
from jaxtrain.errors import ConfigError
from jaxtrain.redact import redact

USAGE = f"""jaxtrain config --config=FILE[:variant] [{" | ".join(MODES)}] [--config.a.b=value ...]
jaxtrain config --workdir=DIR

Prints every key of the config, its value, and where that comes from: a flag, a mode of `train`, the config file, `data`
(for what an eval takes over), the default of the schema, or the default of what a `type` names. --workdir reads the
config of a run."""


def main(argv: Sequence[str]) -> int:
    """Print the resolved config. Raises ConfigError with every problem, WorkdirError for a workdir without one."""
    if any(argument in ("-h", "--help") for argument in argv):
        print(USAGE)
        return 0
    parsed = parse(arguments.read(argv, switches=tuple(MODES)).draft)
    config, problems = check_options(parsed.config)
    if parsed.problems or problems:
        raise ConfigError([*parsed.problems, *problems])
    rows = [(key, json.dumps(value), parsed.origins[key]) for key, value in flatten(to_dict(config))]
    rows = sorted([*rows, *_target_defaults(config)], key=lambda row: _place(row[0]))
    widths = [min(max(len(row[column]) for row in rows), 48) for column in (0, 1)]
    for key, value, origin in rows:
        print(redact(f"{key:{widths[0]}}  {value:{widths[1]}}  {origin}"))
    return 0


def _target_defaults(config: Config) -> Iterator[tuple[str, str, str]]:
    """A row for each option that the config leaves to its target."""
    for key, spec, runtime_names in _specs(config, "", ()):
        if not isinstance(spec.type, str) or not spec.type:
            continue
        target = import_target(spec.type, key)
        fields = {field.name for field in dataclasses.fields(spec)}
        for name, option in signature(target).options.items() if callable(target) else ():
            if name in spec.options or name in fields:
                continue
            if name in runtime_names:
                yield f"{key}.{name}", "...", "given by the trainer"
            elif option.default is not REQUIRED:
                default = option.default
                text = json.dumps(default) if isinstance(default, bool | str | None) else shown(default)
                yield f"{key}.{name}", text, f"default of {spec.type}"


def _specs(value: Any, key: str, runtime_names: tuple[str, ...]) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    """Every (key, spec, names that the trainer passes to it) inside a config."""
    if isinstance(value, OPEN):
        yield key, value, runtime_names
    if is_group(value):
        items: Mapping[str, Any] = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        items = {**items, **items.get("options", {})}
    else:
        items = value if isinstance(value, Mapping) else {}
    for name, item in items.items():
        if name != "options":
            place = "data" if name in ("data", "transforms") else name
            yield from _specs(item, f"{key}.{name}" if key else name, RUNTIME_NAMES.get(place, runtime_names))


def _place(key: str) -> tuple[int, str]:
    """The group of a key in the order of the schema, so that a target's defaults stand beside its options."""
    order = [field.name for field in dataclasses.fields(Config)]
    return order.index(key.split(".")[0]), key.rpartition(".")[0]
