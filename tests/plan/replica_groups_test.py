"""Each way in which XLA writes groups, against devices counted by hand."""

import pytest

from jaxtrain.plan.replica_groups import axes_of_groups, axes_of_pairs, read_groups, read_pairs

MESH = {"data": 2, "fsdp": 1, "sequence": 2, "tensor": 2}
ALL = (tuple(range(8)),)


@pytest.mark.parametrize(
    ("attributes", "groups", "axes"),
    [
        (", replica_groups={{0,1},{2,3},{4,5},{6,7}}, x={{9}}", ((0, 1), (2, 3), (4, 5), (6, 7)), ("tensor",)),
        (", replica_groups={}", ALL, ("data", "sequence", "tensor")),
        (", channel_id=1", ALL, ("data", "sequence", "tensor")),
        (", replica_groups=[1,8]<=[8], dimensions={0}", ALL, ("data", "sequence", "tensor")),
        (", replica_groups=[2,4]<=[8]", ((0, 1, 2, 3), (4, 5, 6, 7)), ("sequence", "tensor")),
        (", replica_groups=[4,2]<=[2,4]T(1,0)", ((0, 4), (1, 5), (2, 6), (3, 7)), ("data",)),
        (", replica_groups=[2,4]<=[2,2,2]T(1,0,2)", ((0, 1, 4, 5), (2, 3, 6, 7)), ("data", "tensor")),
        (", replica_groups={{0},{1},{2},{3},{4},{5},{6},{7}}", tuple((i,) for i in range(8)), ()),
        (", replica_groups={{0,3},{1,2},{4,7},{5,6}}", ((0, 3), (1, 2), (4, 7), (5, 6)), None),
        (", replica_groups=mesh['a'=8] {'a'}", ALL, ("data", "sequence", "tensor")),
        (", replica_groups=mesh['a'=2,'b'=4] {'b'}", ((0, 1, 2, 3), (4, 5, 6, 7)), ("sequence", "tensor")),
        (
            ", replica_groups=mesh['a'=2,'b'=1,'c'=4], device_ids=([4,2]T(1,0)) {'a'}, use_global_device_ids=true",
            ((0, 1), (2, 3), (4, 5), (6, 7)),
            ("tensor",),
        ),
        (", replica_groups=mesh['a'=8] {'a':(2)2}", ((0, 2), (1, 3), (4, 6), (5, 7)), ("sequence",)),
        (
            ", replica_groups=mesh['a'=2,'b'=4], device_ids=(0,2,4,6,1,3,5,7) {'a'}",
            ((0, 1), (2, 3), (4, 5), (6, 7)),
            ("tensor",),
        ),
    ],
)
def test_groups_and_their_axes(attributes, groups, axes):
    assert read_groups(attributes, 8) == groups
    assert axes_of_groups(groups, MESH) == axes


def test_an_unknown_form_is_refused_and_not_taken_for_all_devices():
    with pytest.raises(ValueError, match="not known"):
        read_groups(", replica_groups=everyone", 8)


def test_a_permutation_moves_along_the_axes_in_which_its_pairs_differ():
    pairs = read_pairs(", channel_id=2, source_target_pairs={{0,2},{2,0},{5,7}}, x={1}")
    assert pairs == ((0, 2), (2, 0), (5, 7))
    assert axes_of_pairs(pairs, MESH) == ("sequence",)
    assert axes_of_pairs(((0, 3),), MESH) == ("sequence", "tensor")
