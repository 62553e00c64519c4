import dataclasses
import inspect
import re

from jaxtrain.config import Config, schema, to_dict
from jaxtrain.config.parse import parse

DATA = ("type", "transforms", "num_batches", "shuffle", "num_workers", "prefetch", "max_bad_examples")
CLASSES = [value for value in vars(schema).values() if inspect.isclass(value) and dataclasses.is_dataclass(value)]


def test_every_key_but_a_group_has_a_sentence():
    missing = []
    for cls in CLASSES:
        lines = inspect.getsource(cls).splitlines()
        for index, line in enumerate(lines):
            name = re.match(r"    (\w+): ", line)
            is_group = bool(re.search(r"= [A-Z]\w+\(\)$", line))
            if name and not is_group and not lines[index - 1].strip().startswith("#") and name[1] != "evals":
                missing.append(f"{cls.__name__}.{name[1]}")
    assert missing == []


def test_only_what_must_be_chosen_lacks_a_default_that_is_right():
    assert {problem.key for problem in parse({}).problems} == {"duration", "task.type", "data.type"}


def test_configs_do_not_share_what_can_be_changed():
    assert Config().evals is not Config().evals
    assert all(cls.__dataclass_params__.frozen for cls in CLASSES)


def test_the_schema_is_the_one_that_is_documented():
    groups = {key: set(value) for key, value in to_dict(Config()).items() if isinstance(value, dict)}
    assert groups["optimizer"] == {"type", "learning_rate"}
    assert groups["data"] == set(DATA)
    assert set(to_dict(schema.Eval())) == {"data", "every", "batch_size", "num_batches"}
