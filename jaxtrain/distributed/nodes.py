"""Which devices share a node: neighbours there talk fast, so the inner axes of the mesh are laid inside of nodes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jax.sharding import Mesh


def arranged(devices: Sequence[Any], members: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Order devices node by node, whichever process is where: the last axes of a mesh of them then stay inside.

    members: of the crew, by process; none for a process alone.
    """
    first = {member["node"]: index for index, member in reversed(list(enumerate(members)))}

    def place(device: Any) -> tuple[int, int, int]:
        node = members[device.process_index]["node"] if members else ""
        return first.get(node, 0), device.process_index, device.id

    return sorted(devices, key=place)


def axes_across(mesh: Mesh, members: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Name the axes of more than one device some of whose groups lie on several nodes."""
    if not members:
        return ()
    nodes = np.vectorize(lambda device: members[device.process_index]["node"], otypes=[object])(mesh.devices)
    lines = {axis: np.moveaxis(nodes, dim, -1).reshape(-1, nodes.shape[dim]) for dim, axis in enumerate(mesh.shape)}
    return tuple(axis for axis, groups in lines.items() if any(len(set(group)) > 1 for group in groups))


def describe(mesh: Mesh, members: Sequence[Mapping[str, Any]]) -> str:
    """Say which axes leave their node."""
    across = axes_across(mesh, members)
    inside = [axis for axis, size in mesh.shape.items() if size > 1 and axis not in across]
    spelled = ", ".join(f"{axis}={size}" for axis, size in mesh.shape.items() if size > 1) or "one device"
    num_nodes = len({member["node"] for member in members}) or 1
    parts = [f"mesh {spelled} on {num_nodes} node{'s' if num_nodes > 1 else ''}"]
    if across:
        parts.append(f"{', '.join(across)} across nodes, {', '.join(inside) or 'nothing'} inside")
    return ": ".join(parts)
