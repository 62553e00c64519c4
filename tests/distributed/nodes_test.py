import dataclasses

import numpy as np
import pytest
from jax.sharding import Mesh

from jaxtrain.distributed.nodes import arranged, axes_across, describe


@dataclasses.dataclass(frozen=True)
class Device:
    id: int
    process_index: int


def devices(num_processes, each):
    return [Device(process * 100 + number, process) for process in range(num_processes) for number in range(each)]


def members(nodes):
    return [{"node": node} for node in nodes]


def mesh(found, *sizes):
    made = object.__new__(Mesh)  # a real one takes real devices only
    object.__setattr__(made, "devices", np.array(found, dtype=object).reshape(sizes))
    object.__setattr__(made, "axis_names", ("data", "fsdp", "sequence", "tensor"))
    return made


@pytest.mark.parametrize("nodes", ["aaaabbbb", "abababab", "abbaabba", "bbbbaaaa"])
def test_inner_axes_stay_on_a_node_however_processes_are_dealt_out(nodes):
    made = mesh(arranged(devices(8, 1), members(nodes)), 2, 2, 1, 2)
    assert axes_across(made, members(nodes)) == ("data",)
    assert (
        describe(made, members(nodes))
        == "mesh data=2, fsdp=2, tensor=2 on 2 nodes: data across nodes, fsdp, tensor inside"
    )


def test_without_arranging_they_would_not():
    made = mesh(devices(8, 1), 2, 2, 1, 2)
    assert axes_across(made, members("abababab")) == ("tensor",)


def test_an_axis_larger_than_a_node_crosses_and_is_told():
    made = mesh(arranged(devices(2, 4), members("ab")), 1, 8, 1, 1)
    assert axes_across(made, members("ab")) == ("fsdp",)
    assert describe(made, members("ab")).endswith("fsdp across nodes, nothing inside")


def test_devices_of_a_process_stay_in_their_order_and_alone_nothing_changes():
    found = devices(2, 3)
    assert arranged(found, members("aa")) == found
    assert arranged(found[:3], []) == found[:3]
    assert axes_across(mesh(found[:3], 3, 1, 1, 1), []) == ()
    assert describe(mesh(found[:1], 1, 1, 1, 1), []) == "mesh one device on 1 node"
