"""What must be the same in all processes of a run, compared before anything expensive begins."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxtrain.distributed.alone import Alone
from jaxtrain.errors import RefusedError

_MAX_TOLD = 8
_ABSENT = "(absent)"


def require_same(crew: Alone, what: str, value: Mapping[str, Any], names: Sequence[str] | None = None) -> None:
    """Compare `value`, or those of its items that `names` lists, with every other process.

    value: nested dicts of what JSON takes. Raises RefusedError in all of them, naming each key that differs.
    """
    mine = {name: value[name] for name in (value if names is None else names)}
    first, *others = (dict(_leaves(found)) for found in crew.gather(what, mine))
    differing = [
        f"{key}: {first.get(key, _ABSENT)} in process 0, {other.get(key, _ABSENT)} in process {number}"
        for number, other in enumerate(others, 1)
        for key in sorted(first.keys() | other.keys())
        if first.get(key, _ABSENT) != other.get(key, _ABSENT)
    ]
    if differing:
        more = f"\n  and {len(differing) - _MAX_TOLD} more" if len(differing) > _MAX_TOLD else ""
        listed = "".join(f"\n  {line}" for line in differing[:_MAX_TOLD])
        raise RefusedError(f"The processes were not started alike; in the {what} these differ:{listed}{more}")


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for name, part in value.items():
            yield from _leaves(part, f"{key}.{name}" if key else name)
    else:
        yield key, json.dumps(value, sort_keys=True)
