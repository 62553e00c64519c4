"""Which devices take part in a collective together, and which axes of the mesh that is. Pure text, no JAX.

XLA writes groups as lists, `{{0,1},{2,3}}`; as an iota, `[2,4]<=[4,2]T(1,0)`: count up to 8, reshape to [4,2],
transpose, reshape to 2 groups of 4; or by axes, `mesh['a'=2,'b'=4] {'a'}`: the devices that differ in `a` alone.
Numbers are positions in the mesh, counted with its last axis fastest.
"""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

Groups = tuple[tuple[int, ...], ...]

_LISTS = re.compile(r"replica_groups=(\{(?:\{[\d,]*\},?)*\})")
_IOTA = re.compile(r"(?:replica_groups=)?\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(
    r"replica_groups=mesh\[([^\]]*)\]"
    r"(?:, device_ids=\((\[[\d,]+\](?:T\([\d,]+\))?|[\d,\s]+)\))?"
    r"\s*\{([^}]*)\}"
)
_AXIS = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?")
_PAIRS = re.compile(r"source_target_pairs=(\{(?:\{\d+,\d+\},?)*\})")


def read_groups(attributes: str, num_devices: int) -> Groups:
    """Read an instruction's `replica_groups`; none written means all devices. Raises ValueError for another form."""
    if found := re.search(r"replica_groups=\[", attributes) and _IOTA.search(attributes):
        shape, dims, order = found.groups()
        return _as_groups(_iota(_ints(dims), order).reshape(_ints(shape)))
    if found := _MESH.search(attributes):
        return _mesh_groups(*found.groups())
    if found := _LISTS.search(attributes):
        groups = tuple(tuple(_ints(group)) for group in re.findall(r"\{([\d,]*)\}", found[1][1:-1]) if group)
        return groups or (tuple(range(num_devices)),)
    if "replica_groups=" in attributes:
        raise ValueError(f"replica groups of a form that is not known: {attributes[:200]}")
    return (tuple(range(num_devices)),)


def read_pairs(attributes: str) -> Groups:
    """Read the (source, target) pairs of a permutation."""
    found = _PAIRS.search(attributes)
    return tuple(tuple(_ints(pair)) for pair in re.findall(r"\{(\d+,\d+)\}", found[1])) if found else ()


def axes_of_groups(groups: Groups, mesh: Mapping[str, int]) -> tuple[str, ...] | None:
    """Give the axes, of more than one device, that a collective with these groups runs over.

    mesh: axis -> size in the mesh's order. None: no choice of whole axes gives these groups.
    """
    wanted = {frozenset(group) for group in groups}
    axes = [axis for axis, size in mesh.items() if size > 1]
    devices = np.arange(int(np.prod(list(mesh.values())))).reshape(tuple(mesh.values()))
    for count in range(len(axes) + 1):
        for chosen in itertools.combinations(axes, count):
            over = [position for position, axis in enumerate(mesh) if axis in chosen]
            if {frozenset(group) for group in _along(devices, over)} == wanted:
                return chosen
    return None


def axes_of_pairs(pairs: Groups, mesh: Mapping[str, int]) -> tuple[str, ...]:
    """Give the axes along which any of these (source, target) pairs moves."""
    shape = tuple(mesh.values())
    places = [np.unravel_index(pair, shape) for pair in pairs]
    return tuple(axis for dim, axis in enumerate(mesh) if any(place[dim][0] != place[dim][1] for place in places))


def _mesh_groups(sizes: str, device_ids: str | None, chosen: str) -> Groups:
    shape = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", sizes)}
    devices = _device_ids(device_ids, int(np.prod(list(shape.values()))))
    # An axis of which a part is chosen, 'a':(2)4, is cut into what is before that part, the part, and what is after.
    dims: list[int] = []
    over: list[int] = []
    parts = {name: (before, size) for name, before, size in _AXIS.findall(chosen)}
    for name, size in shape.items():
        before, part = parts.get(name, ("", ""))
        cut = [int(before), int(part), size // (int(before) * int(part))] if part else [size]
        if name in parts:
            over.append(len(dims) + (1 if part else 0))
        dims += cut
    return _as_groups(_along(devices.reshape(dims), over))


def _device_ids(text: str | None, count: int) -> np.ndarray:
    if text is None:
        return np.arange(count)
    if not text.startswith("["):
        return np.array(_ints(text))
    found = re.fullmatch(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    if found is None:
        raise ValueError(f"device ids of a form that is not known: {text}")
    return _iota(_ints(found[1]), found[2])


def _iota(dims: Sequence[int], order: str | None) -> np.ndarray:
    devices = np.arange(int(np.prod(dims))).reshape(dims)
    return devices.transpose(_ints(order)) if order else devices


def _along(devices: np.ndarray, over: Sequence[int]) -> np.ndarray:
    """Give [group, member]: the members of a group differ in the dims `over` alone."""
    size = int(np.prod([devices.shape[dim] for dim in over], dtype=int))
    return np.moveaxis(devices, over, range(-len(over), 0)).reshape(-1, size) if over else devices.reshape(-1, 1)


def _as_groups(array: Iterable[Iterable[int]]) -> Groups:
    return tuple(tuple(int(device) for device in group) for group in array)


def _ints(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number.strip()]
