"""Read compiled HLO text (`compiled.as_text()`): its computations, and how often each runs. Pure text, no JAX.

A while loop runs its body as often as XLA says (`known_trip_count`), else as often as its condition's comparison with a
constant allows, where start and step are constants too. Nested loops multiply. A branch of a conditional counts as run
whenever the conditional is: what is counted is then an upper bound, and said to be `in_branch`.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping

_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*-> .*\{$")
_NAME = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = ")
_SHAPE = re.compile(r"([a-z]\w*)\[([\d,<= ]*)\]")
_OPERAND = re.compile(r"(?:^|[\s,(])%([\w.\-]+)")
_CALLED = re.compile(r"\b(calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)")
_CALLED_LISTS = re.compile(r"\b(?:branch_computations|called_computations|calls)=\{([^}]*)\}")
_BRANCHES = ("branch_computations", "true_computation", "false_computation")


@dataclasses.dataclass(frozen=True)
class Shape:
    """One array: its dtype as HLO spells it, and its dims."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes on one device. What holds no numbers, as a token, has none."""
        bits = 8 if self.dtype == "pred" else int((re.findall(r"\d+", self.dtype) or ["0"])[0])
        return math.ceil(math.prod(self.dims) * bits / 8)


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line. result: its type as written; `attributes`: all behind the operands."""

    name: str
    opcode: str
    result: str
    operands: tuple[str, ...]
    arguments: str
    attributes: str
    is_root: bool

    @property
    def called(self) -> tuple[str, ...]:
        """The computations that run when it does. What a reduction applies to pairs of elements is not among them."""
        single = [
            name for kind, name in _CALLED.findall(self.attributes) if kind != "to_apply" or self.opcode == "call"
        ]
        lists = [re.findall(r"[\w.\-]+", names) for names in _CALLED_LISTS.findall(self.attributes)]
        return tuple(dict.fromkeys([*single, *(name for names in lists for name in names)]))

    def attribute(self, name: str) -> str:
        """Give the computation of this attribute; "" if there is none."""
        return next((value for key, value in _CALLED.findall(self.attributes) if key == name), "")


@dataclasses.dataclass(frozen=True)
class Visit:
    """A computation as one chain of calls reaches it.

    runs: how often in one run of the program; None: a loop around it has an unknown trip count.
    in_branch: a conditional decides whether it runs at all.   loops: the names of the loops around it.
    """

    computation: str
    runs: int | None
    in_branch: bool
    loops: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Program:
    """Computations by name, each a mapping of its instructions by name."""

    entry: str
    computations: Mapping[str, Mapping[str, Instruction]]

    def visits(self) -> Iterator[Visit]:
        """Give every computation each time that another one calls it, from the entry down."""
        waiting = [Visit(self.entry, 1, False, ())]
        while waiting:
            visit = waiting.pop()
            yield visit
            for instruction in self.computations[visit.computation].values():
                if instruction.opcode.endswith(("-done", "-update")):
                    continue  # they repeat what the start called
                runs, loops, in_branch = visit.runs, visit.loops, visit.in_branch
                if instruction.opcode == "while":
                    trips = self.trip_count(instruction)
                    runs = None if runs is None or trips is None else runs * trips
                    loops = (*loops, instruction.name)
                in_branch |= any(word in instruction.attributes for word in _BRANCHES)
                waiting += [Visit(name, runs, in_branch, loops) for name in instruction.called]

    def trip_count(self, loop: Instruction) -> int | None:
        """Say how often a while loop runs its body; None: the text does not tell."""
        known = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.attributes)
        return int(known[1]) if known else self._counted(loop)

    def _counted(self, loop: Instruction) -> int | None:
        """Work the count out of `i = start; while i < limit: i += step`, all of them constants."""
        compare, after = self._root(loop.attribute("condition")), self._root(loop.attribute("body"))
        if compare is None or compare.opcode != "compare" or "direction=LT" not in compare.attributes:
            return None
        index, limit = self._tuple_index(compare.operands[0]), self._constant(compare.operands[1])
        start, added = self._element(self._find(loop.operands[0]), index), self._element(after, index)
        first = self._constant(start.name) if start else None
        if added is None or added.opcode != "add" or limit is None or first is None:
            return None
        counters = [self._tuple_index(name) == index for name in added.operands]
        step = self._constant(added.operands[counters.index(False)]) if sum(counters) == 1 else None
        return max(0, -((first - limit) // step)) if step and step > 0 else None

    @functools.cached_property
    def _instructions(self) -> dict[str, Instruction]:
        """All of them: XLA gives no name twice in a module."""
        return {name: each for computation in self.computations.values() for name, each in computation.items()}

    def _find(self, name: str) -> Instruction | None:
        """Give an instruction, behind copies of it; a fusion as its root, between the operands of the fusion."""
        found = self._instructions.get(name)
        if found is None or not found.operands:
            return found
        if found.opcode in ("copy", "bitcast"):
            return self._find(found.operands[0])
        if found.opcode in ("fusion", "call") and (root := self._root(found.called[0])):
            inner = [self._instructions.get(operand) for operand in root.operands]
            outer = [
                found.operands[int(each.arguments)] if each and each.opcode == "parameter" else "" for each in inner
            ]
            pairs = zip(outer, root.operands, strict=True)
            return dataclasses.replace(root, operands=tuple(given or own for given, own in pairs))
        return found

    def _root(self, computation: str) -> Instruction | None:
        return next((self._find(each.name) for each in self.computations[computation].values() if each.is_root), None)

    def _element(self, whole: Instruction | None, index: int | None) -> Instruction | None:
        if whole is None or index is None or whole.opcode != "tuple" or index >= len(whole.operands):
            return None
        return self._find(whole.operands[index])

    def _tuple_index(self, name: str) -> int | None:
        found = self._find(name)
        told = re.search(r"\bindex=(\d+)", found.attributes) if found and found.opcode == "get-tuple-element" else None
        return int(told[1]) if told else None

    def _constant(self, name: str) -> int | None:
        found = self._find(name)
        is_number = found is not None and found.opcode == "constant" and re.fullmatch(r"-?\d+", found.arguments)
        return int(found.arguments) if found is not None and is_number else None


def read(text: str) -> Program:
    """Read a module's text. Raises ValueError if it has no entry computation."""
    computations: dict[str, dict[str, Instruction]] = {}
    entry, current = "", None
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header:
            current = computations.setdefault(header[2], {})
            entry = header[2] if header[1] else entry
        elif line.startswith("}"):
            current = None
        elif current is not None and (named := _NAME.match(line)):
            instruction = _read_line(named[2], line[named.end() :], bool(named[1]))
            current[instruction.name] = instruction
    if not entry:
        raise ValueError("this is no text of a compiled program: it has no ENTRY computation")
    return Program(entry, computations)


def _read_line(name: str, rest: str, is_root: bool) -> Instruction:
    end = _closing(rest, 0) if rest.startswith("(") else rest.index(" ")
    result, rest = rest[:end], rest[end:].lstrip()
    opening = rest.index("(")
    closing = _closing(rest, opening)
    arguments = rest[opening + 1 : closing - 1]
    operands = tuple(_OPERAND.findall(arguments)) or tuple(re.findall(r"[\w.\-]+", arguments))
    return Instruction(name, rest[:opening], result, operands, arguments, rest[closing:], is_root)


def _closing(text: str, opening: int) -> int:
    """Give the position after the parenthesis that closes the one at `opening`."""
    depth = 0
    for position in range(opening, len(text)):
        depth += (text[position] == "(") - (text[position] == ")")
        if depth == 0:
            return position + 1
    raise ValueError(f"a parenthesis is not closed: {text[opening : opening + 80]}")


def shapes(text: str) -> tuple[Shape, ...]:
    """Give every array of a type as it is written, those of nested tuples in their order."""
    text = re.sub(r"/\*.*?\*/", "", text)
    return tuple(
        Shape(dtype, tuple(int(dim.strip(" <=")) for dim in dims.split(",") if dim.strip(" <=")))
        for dtype, dims in _SHAPE.findall(text)
    )


def elements(text: str) -> tuple[str, ...]:
    """Split the type of a tuple into those of its elements; any other type is its own only element."""
    if not text.startswith("("):
        return (text,)
    parts, depth = [""], 0
    for character in re.sub(r"/\*.*?\*/", "", text)[1:-1]:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return tuple(part.strip() for part in parts)
