"""The modes of `jaxtrain train`: named sets of keys, set over the config file. A flag of a key wins over both."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxtrain.config.overrides import Draft, set_key


@dataclasses.dataclass(frozen=True)
class Mode:
    """What a mode is for, and the keys that it sets; "*" stands for every name that the config has there."""

    text: str
    values: Mapping[str, Any]


# A run without evaluations: nothing may wait for their numbers.
_NO_EVALS = {"evals": {}, "callbacks": {}, "checkpoint.keep_best": 0, "checkpoint.best_metric": ""}

# Of several modes, later ones of this list win.
MODES: Mapping[str, Mode] = {
    "--overfit": Mode(
        "train on the first batch alone: its loss must go to nearly nothing",
        {
            "duration": "200 steps",
            "data.num_batches": 1,
            "data.shuffle": False,
            "schedule.warmup": "",
            "checkpoint.every": "",
            **_NO_EVALS,
        },
    ),
    "--barebones": Mode(
        "only the steps and their lines, to time them; the one checkpoint is made after the last step",
        {"checkpoint.every": "", "log.tensorboard": False, "log.trackers": {}, "profile.steps": "", **_NO_EVALS},
    ),
    "--smoke": Mode(
        "two steps of everything: lines, a checkpoint, each evaluation on two batches, the callbacks",
        {
            "duration": "2 steps",
            "schedule.warmup": "",
            "log.every": "1 steps",
            "checkpoint.every": "2 steps",
            "evals.*.every": "2 steps",
            "evals.*.num_batches": 2,
            "callbacks.*.every": "2 steps",
        },
    ),
}


def apply(draft: Draft, mode: str) -> Draft:
    """Set what a mode says wherever no flag did, and give the run a name, and so a workdir, of its own."""
    origins = dict(draft.modes)
    for pattern, value in MODES[mode].values.items():
        for key in _keys(draft.raw, pattern):
            # A value where a group should be is told by the schema, as without a mode.
            if key not in draft.flags and set_key(draft.raw, key, value) is None:
                origins[key] = mode
    set_key(draft.raw, "name", suffixed(str(draft.raw.get("name") or "run"), mode))
    return dataclasses.replace(draft, modes={**origins, "name": mode})


def suffixed(name: str, mode: str) -> str:
    """The name of a run in this mode."""
    return f"{name}-{mode.strip('-')}"


def workdir_beside(workdir: Path, mode: str) -> Path:
    """Where a run in this mode goes when `workdir` is asked for: a mode never touches a run."""
    return workdir.with_name(suffixed(workdir.name, mode))


def _keys(nested: Mapping[str, Any], pattern: str) -> Iterator[str]:
    """The keys that a pattern stands for."""
    group, star, option = pattern.partition(".*.")
    if not star:
        yield pattern
        return
    named = nested.get(group)
    for name, entry in named.items() if isinstance(named, Mapping) else ():
        # What a callback takes is its own affair, so its options are only replaced.
        if group != "callbacks" or (isinstance(entry, Mapping) and option in entry):
            yield f"{group}.{name}.{option}"
