import json
import subprocess
import sys

import pytest

from jaxtrain.config import Config, Spec, Text, config_hash, default_config, from_dict, parse, to_dict
from jaxtrain.config.plain import flatten

RAW = {
    "duration": "10 steps",
    "task": {"type": "a.b:C", "sizes": [1, 2], "model": {"type": "a.b:D", "extra": {"x": None}}},
    "data": {"type": "a.b:E", "transforms": {"crop": {"type": "a.b:F", "size": 3}}},
    "evals": {"validation": {"data": {"split": "validation"}}},
}


def test_a_config_survives_json():
    config = parse(RAW).checked()
    assert config.task.options == {"sizes": (1, 2), "model": Spec("a.b:D", {"extra": {"x": None}})}
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config


def test_the_texts_of_flags_become_plain_text():
    assert type(to_dict(Spec("a:b", {"x": Text("1")}))["x"]) is str


def test_an_object_is_stored_by_the_name_of_its_class_and_never_read_back():
    class Model:
        pass

    config = parse({**RAW, "task": Spec(Model())}).checked()
    stored = to_dict(config)
    assert stored["task"]["type"].startswith("<object of tests.config.plain_test:")
    assert "0x" not in stored["task"]["type"]
    assert [problem.key for problem in parse(stored).problems] == ["task.type"]
    assert parse(config).checked().task.type is config.task.type


def test_the_hash_changes_with_every_key_but_the_name():
    base = parse(RAW).checked()
    assert config_hash(base) == config_hash(parse({**RAW, "name": "other"}).checked())
    assert config_hash(base) != config_hash(parse({**RAW, "seed": 1}).checked())
    assert config_hash(base) == config_hash(parse(dict(reversed(RAW.items()))).checked())


def test_flatten_lists_every_value_and_empty_groups():
    assert dict(flatten({"a": {"b": 1, "c": {}}, "d": [1]})) == {"a.b": 1, "a.c": {}, "d": [1]}


def test_a_misspelt_key_of_the_default_config_fails_on_its_line():
    config = default_config()
    with pytest.raises(AttributeError, match="batch_size"):
        config.batch_sze = 8
    with pytest.raises(AttributeError, match="every"):
        config.log.evry = "5 steps"
    with pytest.raises(TypeError):
        config.seed = "zero"


def test_options_and_named_entries_of_the_default_config_are_open():
    config = default_config()
    config.optimizer.b1 = 0.8
    config.task.type, config.task.model = object(), {"type": "a:b"}
    config.evals.test = {"every": "5 steps"}
    config.data.transforms.crop = {"type": "a:b"}
    config.callbacks.mine = {"type": "a:b"}


def test_the_default_config_is_the_schema():
    assert parse(default_config()).config == parse(Config()).config


def test_configs_are_read_without_jax():
    code = "import sys, jaxtrain.config, jaxtrain.redact, jaxtrain.duration; print('jax' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"
