"""The collectives of a compiled program: what they move, between whom, and how often in one run. Pure text, no JAX."""

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping

from jaxtrain.plan.hlo import Instruction, Program, Shape, elements, read, shapes
from jaxtrain.plan.replica_groups import Groups, axes_of_groups, axes_of_pairs, read_groups, read_pairs

KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective of the text; an asynchronous pair is one. Shapes and bytes are those on one device.

    groups: the devices that take part together, by position in the mesh; of a permutation the (source, target) pairs.
    runs: how often in one run of the program; None: unknown, by way of one of the `loops` around it.
    in_branch: a conditional decides whether it runs; `runs` is then the most.
    """

    kind: str
    name: str
    computation: str
    operands: tuple[Shape, ...]
    results: tuple[Shape, ...]
    groups: Groups
    runs: int | None
    in_branch: bool
    loops: tuple[str, ...]

    @property
    def operand_bytes(self) -> int:
        return sum(shape.num_bytes for shape in self.operands)

    @property
    def result_bytes(self) -> int:
        return sum(shape.num_bytes for shape in self.results)

    @property
    def num_bytes(self) -> int:
        """The whole array that a group shares: what a reduction takes in, what a gather gives."""
        return max(self.operand_bytes, self.result_bytes)

    def axes(self, mesh: Mapping[str, int]) -> tuple[str, ...] | None:
        """Give the axes of the mesh (axis -> size) it runs over; None: its groups are not made by whole axes."""
        if self.kind == "collective-permute":
            return axes_of_pairs(self.groups, mesh)
        return axes_of_groups(self.groups, mesh)


def collectives(text: str) -> list[Collective]:
    """List those of a compiled program's text, as often as different calls lead to them."""
    program = read(text)
    num_devices = _num_devices(text)
    found = []
    for visit in program.visits():
        for instruction in program.computations[visit.computation].values():
            kind = instruction.opcode.removesuffix("-start")
            if kind not in KINDS:
                continue
            pairwise = kind == "collective-permute"
            attributes = instruction.attributes
            found.append(
                Collective(
                    kind=kind,
                    name=instruction.name,
                    computation=visit.computation,
                    operands=_operands(program, visit.computation, instruction),
                    results=_results(instruction),
                    groups=read_pairs(attributes) if pairwise else read_groups(attributes, num_devices),
                    runs=visit.runs,
                    in_branch=visit.in_branch,
                    loops=visit.loops,
                )
            )
    return found


def total_bytes(found: Iterable[Collective], *kinds: str) -> int:
    """Sum `num_bytes` times `runs` over the collectives of these kinds (default: all).

    Raises ValueError if it is unknown how often one of them runs.
    """
    chosen = [each for each in found if not kinds or each.kind in kinds]
    for each in chosen:
        if each.runs is None:
            raise ValueError(f"{each.name} runs in a loop of unknown trip count, one of {', '.join(each.loops)}")
    return sum(each.num_bytes * (each.runs or 0) for each in chosen)


def _operands(program: Program, computation: str, instruction: Instruction) -> tuple[Shape, ...]:
    known = program.computations[computation]
    return tuple(shape for name in instruction.operands if name in known for shape in shapes(known[name].result))


def _results(instruction: Instruction) -> tuple[Shape, ...]:
    """The arrays that come out. The start of a pair also has its operands in its type, but that of an all-reduce."""
    if not instruction.opcode.endswith("-start") or instruction.opcode == "all-reduce-start":
        return shapes(instruction.result)
    return shapes(elements(instruction.result)[1])


def _num_devices(text: str) -> int:
    """How many devices the module is for."""
    counts = re.findall(r"\b(?:num_partitions|replica_count)=(\d+)", text.partition("\n")[0])
    return math.prod(map(int, counts))
