import pytest
from ml_collections import config_dict

from jaxtrain.config import Text
from jaxtrain.config.raw import clean, clean_text, shown


def test_containers_become_plain_and_texts_stay_texts_of_flags():
    source = config_dict.ConfigDict({"a": {"b": (1, 2)}, "ref": config_dict.FieldReference(3) + 1})
    source.c = [{"d": Text("x")}]
    values, problems = clean(source)
    assert values == {"a": {"b": (1, 2)}, "ref": 4, "c": ({"d": "x"},)}
    assert type(values["c"][0]["d"]) is Text
    assert problems == []


SENTINEL = "sentinel-5519-x"


@pytest.mark.parametrize(
    ("source", "key"),
    [
        ({"trackers": {"wandb": {"api_key": SENTINEL}}}, "trackers.wandb.api_key"),
        ({"data": {"credentials": {"user": SENTINEL}}}, "data.credentials.user"),
        ({"data": {"tokens": ({"hf_token": SENTINEL},)}}, "data.tokens.hf_token"),
        ({"data": {"url": f"https://me:{SENTINEL}@host/x"}}, "data.url"),
        ({"data": {"urls": ("a", f"https://host/x?sig={SENTINEL}")}}, "data.urls"),
        ({"password": Text(SENTINEL)}, "password"),
        ({"password": f"env:{SENTINEL}"}, "password"),  # no name of a variable, so it is a secret itself
    ],
)
def test_a_literal_secret_is_refused_and_shown_nowhere(source, key):
    values, problems = clean(source)
    assert [problem.key for problem in problems] == [key]
    assert SENTINEL not in str(problems[0])
    assert SENTINEL not in str(values)
    assert "env:" in problems[0].fix


def test_a_secret_number_is_refused_too():
    values, problems = clean({"password": 19283746})
    assert "19283746" not in f"{values} {problems}"
    assert len(problems) == 1


@pytest.mark.parametrize(
    "source",
    [
        {"api_key": "env:WANDB_API_KEY"},
        {"api_key": ""},
        {"api_key": None},
        {"use_token": True},
        {"tokenizer": "bytes", "max_tokens": 5, "pad_token": "<pad>", "tokens": "abc"},
        {"url": "https://host/x?page=2"},
    ],
)
def test_references_and_ordinary_values_pass(source):
    assert clean(source) == (source, [])


def test_the_text_of_a_flag_is_judged_by_every_part_of_its_key():
    assert clean_text(Text("abcdefg"), "data.credentials.user")[1]
    assert not clean_text(Text("abcdefg"), "data.user")[1]


@pytest.mark.parametrize("source", [3, None, "text", [1], {1: 2}, {"a": {1, 2}}, {"a": b"x"}, {"a": 10**30}, {"": 1}])
def test_oddities_are_problems(source):
    assert len(clean(source)[1]) == 1


def test_loops_end():
    loop = {}
    loop["a"] = loop
    chain = []
    chain.append(chain)
    assert len(clean(loop)[1]) == 1
    assert len(clean({"a": chain})[1]) == 1


def test_references_that_cannot_be_computed_are_problems():
    source = config_dict.ConfigDict({"a": config_dict.required_placeholder(int)})
    source.divisor = config_dict.FieldReference(1)
    source.b = 1 // source.get_ref("divisor")
    source.divisor = 0
    assert [problem.key for problem in clean(source)[1]] == ["a", "b"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a\nb", r"a\nb"),
        ("é\ud800", r"\xe9\ud800"),
        ("x" * 500, "x" * 120 + "..."),
        pytest.param(10**5000, "a number of thousands of digits", id="digits"),
        ({"a": 1}, "{a}"),
        ((1, "b"), "(1, b)"),
        (object(), "an object of builtins.object"),
    ],
)
def test_values_are_shown_on_one_printable_line(value, text):
    assert shown(value) == text
