"""Groups of parameters, told apart by regular expressions over their paths, and what weight decay is for.

A path is what the table of the start prints: "layers/attention/query/kernel". The first group of the config whose
`match` is found in it (`re.search`) has the parameter; the group "default" has those that no other has.
"""

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from jaxtrain.config import limits, schema
from jaxtrain.errors import ConfigError, Problem
from jaxtrain.typing import Params, PyTree

DEFAULT = limits.DEFAULT_GROUP
FOREVER = 2**31 - 1  # steps: for the whole run
_NEVER_DECAYED = re.compile(r"(^|_)(bias|scale)$")


def path_of(path: Sequence[Any]) -> str:
    """Spell the path of a leaf."""
    return jax.tree_util.keystr(tuple(path), simple=True, separator="/")


def decayed(params: Params) -> PyTree:
    """Give which parameters weight decay is for: matrices and embeddings, not biases, norms and other vectors.

    A tree of bool: False for a name that is or ends in `bias` or `scale`, and for fewer than 2 dims. The name counts
    because a LayerNorm of layers stacked by a scan has a scale [layers, embed], and an attention's bias is
    [heads, head_dim].
    """

    def is_decayed(path: Sequence[Any], param: Any) -> bool:
        return param.ndim > 1 and _NEVER_DECAYED.search(path_of(path[-1:])) is None

    return jax.tree.map_with_path(is_decayed, params)


@dataclasses.dataclass(frozen=True)
class ParamGroups:
    """The groups of a config.

    groups: in the order in which they are tried.   decayed: params -> tree of bool, what weight decay is for; None:
    there is no decay, or the user's own mask says it.   freeze_steps: the `freeze_for` of groups that have one.
    """

    groups: Mapping[str, schema.ParamGroup]
    decayed: Callable[[Params], PyTree] | None = None
    freeze_steps: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def __getitem__(self, name: str) -> schema.ParamGroup:
        return schema.ParamGroup() if name == DEFAULT else self.groups[name]

    def name_of(self, path: str) -> str:
        """Give the group that the parameter of this path belongs to."""
        return next((name for name, group in self.groups.items() if re.search(group.match, path)), DEFAULT)

    def names(self, params: Params) -> PyTree:
        """Give each parameter's group."""
        return jax.tree.map_with_path(lambda path, _: self.name_of(path_of(path)), params)

    def frozen(self, params: Params) -> PyTree:
        """Give for how many steps each parameter stays as it is: 0, a number, or FOREVER."""
        return jax.tree.map(
            lambda name: FOREVER if self[name].freeze else self.freeze_steps.get(name, 0), self.names(params)
        )

    def check(self, params: Params) -> None:
        """Raise ConfigError for a group that would do nothing with these parameters, and if nothing is left to train.

        params: also as shapes.
        """
        paths = [path_of(path) for path, _ in jax.tree.leaves_with_path(params)]
        names = [self.name_of(path) for path in paths]
        problems = [problem for name in self.groups for problem in self._problems(name, paths, params)]
        if not problems and all(self[name].freeze for name in names):
            name = names[-1]
            allowed = "every parameter is frozen, so there is nothing to train"
            problems = [Problem(f"param_groups.{name}.freeze", True, allowed, "Leave a part to train.")]
        if problems:
            raise ConfigError(problems)

    def _problems(self, name: str, paths: Sequence[str], params: Params) -> Iterator[Problem]:
        group, key = self[name], f"param_groups.{name}"
        own = [self.name_of(path) == name for path in paths]
        if not any(own):
            takers = dict.fromkeys(self.name_of(path) for path in paths if re.search(group.match, path))
            if takers:
                allowed = f"group {name!r} has no parameter: all it matches are in {', '.join(takers)}, before it"
                yield Problem(
                    f"{key}.match", group.match, allowed, "Put it before them; the first that matches has it."
                )
            else:
                near = ", ".join(difflib.get_close_matches(group.match, paths, 4, 0.0))
                yield Problem(f"{key}.match", group.match, f"group {name!r} matches no parameter", f"Near are {near}.")
            return
        if group.freeze and (group.learning_rate_factor, group.weight_decay) != (1.0, None):
            allowed = "a frozen group has no rate and no weight decay"
            yield Problem(f"{key}.freeze", True, allowed, "Set only freeze, or the others.")
        if group.freeze and group.freeze_for:
            allowed = "a group is frozen for the whole run, by freeze, or for a while"
            yield Problem(f"{key}.freeze_for", group.freeze_for, allowed, "Set one of them.")
        if group.weight_decay and self.decayed is not None:
            decays = jax.tree.leaves(self.decayed(params))
            if not any(mine and decay for mine, decay in zip(own, decays, strict=True)):
                allowed = f"group {name!r} has only biases, scales and vectors, which are never decayed"
                fix = "Leave it away, or say what is decayed with a mask of your own, an option of the optimizer."
                yield Problem(f"{key}.weight_decay", group.weight_decay, allowed, fix)

    def describe(self, params: Params) -> str:
        """Print the table of groups: how many parameters and elements each has, and how they are treated."""
        header = ["group", "parameters", "elements", "rate", "weight decay", "decayed elements"]
        rows = [header[: None if self.decayed else -1]]
        sizes = [leaf.size for leaf in jax.tree.leaves(params)]
        names = jax.tree.leaves(self.names(params))
        decays = jax.tree.leaves(self.decayed(params)) if self.decayed else [False] * len(sizes)
        for name in (*self.groups, DEFAULT):
            own = [size for size, other in zip(sizes, names, strict=True) if other == name]
            group = self[name]
            decay = "the optimizer's" if group.weight_decay is None else f"{group.weight_decay:g}"
            rate = f"x {group.learning_rate_factor:g}"
            if name in self.freeze_steps:
                rate += f" after step {self.freeze_steps[name]}"
            treated = ["frozen", "-"] if group.freeze else [rate, decay]
            row = [name, str(len(own)), f"{sum(own):,}", *treated]
            if self.decayed:
                of = zip(sizes, names, decays, strict=True)
                num_decayed = sum(size for size, other, decay in of if decay and other == name and not group.freeze)
                row.append(f"{num_decayed:,}")
            rows.append(row)
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
