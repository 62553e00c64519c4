"""What may change between two launches of one run: how each key of the config is judged on resume."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any, Literal

from jaxtrain.config.plain import flatten
from jaxtrain.config.raw import shown

Severity = Literal["refused", "notice", "free"]

# A rule holds for its key and everything below it; the longest rule that fits decides.
RULES: Mapping[str, Severity] = {
    "name": "free",
    "seed": "refused",
    "duration": "notice",
    "batch_size": "refused",
    "init_from": "notice",
    "compile_cache": "free",
    "deterministic": "notice",
    "task": "refused",
    "data": "refused",
    "data.num_workers": "free",
    "data.prefetch": "free",
    "data.max_bad_examples": "notice",
    "evals": "notice",
    "optimizer": "refused",
    "optimizer.learning_rate": "notice",
    "schedule": "notice",
    "clip_norm": "notice",
    "param_groups": "refused",
    "ema": "refused",
    "accumulation": "notice",
    "precision": "refused",
    "nonfinite": "notice",
    "mesh": "notice",
    "sharding": "notice",
    "checkpoint": "free",
    "log": "free",
    "profile": "free",
    "callbacks": "free",
    "preemption": "free",
    "distributed": "free",
}
ABSENT = "(absent)"
_NAMED = (
    "evals",
    "callbacks",
    "param_groups",
    "init_from.rename",
    "data.transforms",
    "log.trackers",
    "sharding.rules",
    "sharding.logical_axes",
)  # empty ones say nothing: what they gained or lost is told itself


@dataclasses.dataclass(frozen=True)
class Change:
    """One key that differs. `old` or `new` is "(absent)" where only the other config has the key."""

    key: str
    old: Any
    new: Any
    severity: Severity

    def __str__(self) -> str:
        return f"{self.key}: {shown(self.old)} -> {shown(self.new)}"


def compare(
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    default: Callable[[Mapping[str, Any], str], Any] = lambda config, key: ABSENT,
) -> list[Change]:
    """Every difference between two configs as `to_dict` returns them, in the order of the new one.

    `default(config, key)`: what a key stands for in a config that leaves it away.
    """
    before, after = _leaves(old), _leaves(new)
    changes = []
    for key in [*after, *(key for key in before if key not in after)]:
        was = before[key] if key in before else default(old, key)
        now = after[key] if key in after else default(new, key)
        if json.dumps(was, sort_keys=True) != json.dumps(now, sort_keys=True):
            changes.append(Change(key, was, now, severity(key)))
    return changes


def severity(key: str) -> Severity:
    """How a change of this dotted key is judged. A key without a rule is refused."""
    parts = key.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((RULES[prefix] for prefix in prefixes if prefix in RULES), "refused")


def _leaves(config: Mapping[str, Any]) -> dict[str, Any]:
    """Every key that is no group, and of the groups whose order matters, the names in their order."""
    leaves = {key: value for key, value in flatten(config) if value != {} or key not in _NAMED}
    ordered = {
        "data.transforms": config.get("data", {}).get("transforms", {}),
        "param_groups": config.get("param_groups", {}),
    }
    return leaves | {key: list(named) for key, named in ordered.items() if named}
