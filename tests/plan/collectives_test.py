"""Collectives of text as XLA:GPU writes it, with bytes worked out by hand, and of a program compiled here."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxtrain.config import Mesh
from jaxtrain.plan.collectives import collectives, total_bytes
from jaxtrain.sharding import make_mesh

GPU = """HloModule jit_step, is_scheduled=true, num_partitions=8

%add (a.1: f32[], b.1: f32[]) -> f32[] {
  %a.1 = f32[] parameter(0)
  %b.1 = f32[] parameter(1)
  ROOT %sum.1 = f32[] add(%a.1, %b.1)
}

%wrapped (p.2: f32[16]) -> f32[2] {
  %p.2 = f32[16]{0} parameter(0)
  ROOT %scattered.2 = f32[2]{0} reduce-scatter(%p.2), channel_id=4, replica_groups=[1,8]<=[8], dimensions={0}, to_apply=%add
}

%body (p.3: (s32[], bf16[4])) -> (s32[], bf16[4]) {
  %p.3 = (s32[], bf16[4]{0}) parameter(0)
  %i.3 = s32[] get-tuple-element(%p.3), index=0
  %x.3 = bf16[4]{0} get-tuple-element(%p.3), index=1
  %gather.3 = (bf16[4]{0}, bf16[32]{0}) all-gather-start(%x.3), channel_id=1, replica_groups=[1,8]<=[8], dimensions={0}, backend_config={"collective_backend_config":{"is_sync":false}}
  %gathered.3 = bf16[32]{0} all-gather-done(%gather.3)
  ROOT %t.3 = (s32[], bf16[4]{0}) tuple(%i.3, %x.3)
}

%condition (p.4: (s32[], bf16[4])) -> pred[] {
  %p.4 = (s32[], bf16[4]{0}) parameter(0)
  ROOT %flag.4 = pred[] constant(true)
}

ENTRY %main (x.5: f32[16], y.5: f32[3], t.5: (s32[], bf16[4])) -> f32[2] {
  %x.5 = f32[16]{0} parameter(0)
  %y.5 = f32[3]{0} parameter(1)
  %t.5 = (s32[], bf16[4]{0}) parameter(2)
  %loop.5 = (s32[], bf16[4]{0}) while(%t.5), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"5"}}
  %reduce.5 = (f32[16]{0}, f32[3]{0}) all-reduce-start(%x.5, %y.5), channel_id=2, replica_groups=[4,2]<=[8], to_apply=%add
  %reduced.5 = (f32[16]{0}, f32[3]{0}) all-reduce-done(%reduce.5)
  %moved.5 = (f32[3]{0}, f32[3]{0}, u32[], u32[]) collective-permute-start(%y.5), channel_id=3, source_target_pairs={{0,1},{1,0}}
  %there.5 = f32[3]{0} collective-permute-done(%moved.5)
  %scatter.5 = ((f32[16]{0}), f32[2]{0}) async-start(%x.5), calls=%wrapped
  %between.5 = ((f32[16]{0}), f32[2]{0}) async-update(%scatter.5), calls=%wrapped
  %exchanged.5 = (f32[3]{0}, f32[3]{0}) all-to-all(%y.5, %y.5), channel_id=5, replica_groups={{0,1},{2,3},{4,5},{6,7}}
  ROOT %scattered.5 = f32[2]{0} async-done(%between.5), calls=%wrapped
}
"""  # noqa: E501 (as XLA writes it)


def test_every_kind_is_found_once_with_its_bytes_and_runs():
    found = {
        each.kind: (each.operand_bytes, each.result_bytes, each.runs, each.computation) for each in collectives(GPU)
    }
    assert len(found) == len(collectives(GPU))
    assert found == {
        "all-gather": (8, 64, 5, "body"),
        "all-reduce": (76, 76, 1, "main"),
        "collective-permute": (12, 12, 1, "main"),
        "reduce-scatter": (64, 8, 1, "wrapped"),
        "all-to-all": (24, 24, 1, "main"),
    }


def test_bytes_are_summed_over_runs():
    found = collectives(GPU)
    assert total_bytes(found, "all-gather") == 5 * 64
    assert total_bytes(found, "all-reduce", "reduce-scatter") == 76 + 64
    assert total_bytes(found) == 5 * 64 + 76 + 12 + 64 + 24


def test_axes_are_told_by_the_mesh():
    over = {each.kind: each.axes({"data": 4, "fsdp": 2}) for each in collectives(GPU)}
    assert over["all-gather"] == over["reduce-scatter"] == ("data", "fsdp")
    assert over["all-reduce"] == over["all-to-all"] == over["collective-permute"] == ("fsdp",)


def test_a_sum_over_a_loop_of_unknown_length_is_refused_by_its_name():
    found = collectives(GPU.replace('"known_trip_count":{"n":"5"}', ""))
    assert total_bytes(found, "all-reduce") == 76
    with pytest.raises(ValueError, match=r"gather\.3 runs in a loop of unknown trip count, one of loop\.5"):
        total_bytes(found, "all-gather")


def test_a_program_compiled_here_is_read():
    mesh = make_mesh(Mesh(data=4, fsdp=2), jax.devices())

    def abstract(shape, *axes):
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, PartitionSpec(*axes)))

    def summed(x, w):
        return jax.lax.scan(lambda total, row: (total + jnp.sum(row @ w), None), 0.0, x)[0]

    program = jax.jit(summed).lower(abstract((6, 8, 16), None, ("data", "fsdp")), abstract((16, 2), "fsdp")).compile()
    found = collectives(program.as_text())
    gathers = [each for each in found if each.kind == "all-gather"]
    assert gathers, [each.kind for each in found]
    assert {each.axes(mesh.shape) for each in gathers} == {("fsdp",)}
    sums = [each for each in found if each.kind == "all-reduce" and each.axes(mesh.shape) == ("data", "fsdp")]
    assert total_bytes(sums) in (4, 6 * 4)  # after the loop, or in each of its turns
