"""What is read of compiled text: computations, shapes, and how often each computation runs."""

import pytest

from jaxtrain.plan.hlo import Shape, elements, read, shapes
from tests.floor_plan import JAX_FAMILY, loaded_by, package

# A loop of 3 around a loop whose count only its condition tells, through a fusion as XLA:CPU writes it.
LOOPS = """HloModule jit_step, is_scheduled=true, entry_computation_layout={(f32[4]{0})->f32[4]{0}}, num_partitions=4

%wrapped_compare (a.1: s32[], b.1: s32[]) -> pred[] {
  %a.1 = s32[] parameter(0)
  %b.1 = s32[] parameter(1)
  ROOT %lt.1 = pred[] compare(%a.1, %b.1), direction=LT
}

%inner_condition (p.1: (s32[], f32[4])) -> pred[] {
  %p.1 = (s32[], f32[4]{0}) parameter(0)
  %limit.1 = s32[] constant(7)
  %i.1 = s32[] get-tuple-element(%p.1), index=0
  ROOT %done.1 = pred[] fusion(%i.1, %limit.1), kind=kLoop, calls=%wrapped_compare
}

%inner_body (p.2: (s32[], f32[4])) -> (s32[], f32[4]) {
  %p.2 = (s32[], f32[4]{0}) parameter(0)
  %i.2 = s32[] get-tuple-element(%p.2), index=0
  %two.2 = s32[] constant(2)
  %next.2 = s32[] add(%i.2, %two.2)
  %x.2 = f32[4]{0} get-tuple-element(%p.2), index=1
  ROOT %t.2 = (s32[], f32[4]{0}) tuple(%next.2, %x.2)
}

%outer_condition (p.3: (s32[], f32[4])) -> pred[] {
  %p.3 = (s32[], f32[4]{0}) parameter(0)
  ROOT %flag.3 = pred[] custom-call(%p.3), custom_call_target="who knows"
}

%outer_body (p.4: (s32[], f32[4])) -> (s32[], f32[4]) {
  %p.4 = (s32[], f32[4]{0}) parameter(0)
  %start.4 = s32[] constant(1)
  %x.4 = f32[4]{0} get-tuple-element(%p.4), index=1
  %t.4 = (s32[], f32[4]{0}) tuple(%start.4, %x.4)
  ROOT %inner = (s32[], f32[4]{0}) while(%t.4), condition=%inner_condition, body=%inner_body
}

ENTRY %main (x.5: f32[4]) -> f32[4] {
  %x.5 = f32[4]{0} parameter(0)
  %zero.5 = s32[] constant(0)
  %t.5 = (s32[], f32[4]{0}) tuple(%zero.5, %x.5)
  %outer = (s32[], /*index=1*/f32[4]{0}) while(%t.5), condition=%outer_condition, body=%outer_body, metadata={op_name="a(b"}, backend_config={"known_trip_count":{"n":"3"}}
  ROOT %y.5 = f32[4]{0} get-tuple-element(%outer), index=1
}
"""  # noqa: E501 (as XLA writes it)

BRANCHES = """HloModule jit_step

%yes (p.1: f32[]) -> f32[] {
  ROOT %p.1 = f32[] parameter(0)
}

%no (p.2: f32[]) -> f32[] {
  ROOT %p.2 = f32[] parameter(0)
}

%add (a.3: f32[], b.3: f32[]) -> f32[] {
  %a.3 = f32[] parameter(0)
  %b.3 = f32[] parameter(1)
  ROOT %sum.3 = f32[] add(%a.3, %b.3)
}

%called (p.4: f32[], q.4: pred[]) -> f32[] {
  %p.4 = f32[] parameter(0)
  %q.4 = pred[] parameter(1)
  ROOT %c.4 = f32[] conditional(%q.4, %p.4, %p.4), branch_computations={%yes, %no}
}

ENTRY main (x.5: f32[4], q.5: pred[]) -> f32[] {
  x.5 = f32[4]{0} parameter(0)
  q.5 = pred[] parameter(1)
  zero.5 = f32[] constant(0)
  reduced.5 = f32[] reduce(f32[4]{0} x.5, f32[] zero.5), dimensions={0}, to_apply=%add
  first.5 = f32[] call(f32[] reduced.5, pred[] q.5), to_apply=%called
  ROOT second.5 = f32[] call(f32[] first.5, pred[] q.5), to_apply=%called
}
"""


def runs(text):
    return {visit.computation: visit.runs for visit in read(text).visits()}


def test_trip_counts_multiply_along_the_nesting():
    found = runs(LOOPS)
    assert (found["main"], found["outer_body"], found["inner_body"]) == (1, 3, 9)  # from 1 below 7 by 2 is three times


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('{"known_trip_count":{"n":"3"}}', "{}"),  # the condition is a custom call
        ("%start.4 = s32[] constant(1)", "%start.4 = s32[] get-tuple-element(%p.4), index=0"),
        ("direction=LT", "direction=NE"),
        ("%limit.1 = s32[] constant(7)", "%limit.1 = s32[] get-tuple-element(%p.1), index=0"),
        ("%two.2 = s32[] constant(2)", "%two.2 = s32[] constant(0)"),
    ],
)
def test_a_loop_that_does_not_tell_is_unknown(old, new):
    assert old in LOOPS
    found = runs(LOOPS.replace(old, new))
    assert found["inner_body"] is None
    assert found["main"] == 1


def test_calls_count_each_time_and_branches_are_said_to_be_branches():
    visits = list(read(BRANCHES).visits())
    assert [visit.computation for visit in visits].count("called") == 2
    assert {visit.computation: visit.in_branch for visit in visits} == {
        "main": False,
        "called": False,
        "yes": True,
        "no": True,
    }


def test_shapes_have_dtypes_dims_and_bytes():
    text = "(f32[2,3]{1,0:T(8,128)}, /*index=1*/bf16[5]{0}, pred[], s4[3]{0}, f8e4m3fn[2]{0}, c64[2]{0}, token[])"
    found = shapes(text)
    assert found[0] == Shape("f32", (2, 3))
    assert [shape.num_bytes for shape in found] == [24, 10, 1, 2, 2, 16, 0]


def test_a_tuple_is_split_into_its_own_elements():
    assert elements("((f32[2,3]{1,0}, f32[]), /*index=1*/f32[4]{0})") == ("(f32[2,3]{1,0}, f32[])", "f32[4]{0}")
    assert elements("f32[2,3]{1,0}") == ("f32[2,3]{1,0}",)


def test_other_text_is_refused():
    with pytest.raises(ValueError, match="no ENTRY computation"):
        read("def f(x):\n    return x\n")


def test_the_readers_need_no_jax():
    for module in ("hlo", "replica_groups", "collectives"):
        loaded = loaded_by(package(), f"jaxtrain.plan.{module}")
        assert [name for name in loaded if name.split(".")[0] in JAX_FAMILY] == []
