import pytest

from jaxtrain.config import parse, parts
from jaxtrain.errors import ConfigError


def test_what_a_group_with_options_does_not_know_is_an_option_of_its_type():
    parsed = parse({"duration": "1 steps", "task": {"type": "a:B"}, "data": {"type": "c:D", "depth": 3, "prefetch": 4}})
    assert parsed.config.data == parts.Data(type="c:D", prefetch=4, options={"depth": 3})


def test_evaluation_examples_know_no_workers_and_no_shuffling():
    with pytest.raises(TypeError):
        parts.EvalData(num_workers=2)
    assert not parts.EvalData().type, "which takes that of training"


def test_an_eval_is_no_open_group():
    draft = {
        "duration": "1 steps",
        "task": {"type": "a:B"},
        "data": {"type": "c:D"},
        "evals": {"x": {"evry": "1 steps"}},
    }
    (problem,) = parse(draft).problems
    assert problem.key == "evals.x.evry"
    assert issubclass(ConfigError, Exception)
