"""What a task gives back."""

import inspect

import jax
import jax.numpy as jnp
import pytest

from jaxtrain.metrics import Mean
from jaxtrain.tasks import Output, Task
from jaxtrain.tasks.classification import Classification
from jaxtrain.tasks.language_modeling import LanguageModeling


def test_an_output_is_a_pytree_that_keeps_its_parts():
    output = Output(
        Mean(jnp.ones(()), jnp.ones(())), {"error": Mean(jnp.ones(()), jnp.ones(()))}, {"seen": jnp.ones(2)}
    )
    doubled = jax.jit(lambda output: jax.tree.map(lambda x: 2 * x, output))(output)
    assert isinstance(doubled.loss, Mean)
    assert float(doubled.metrics["error"].total) == 2.0
    assert doubled.model_state["seen"].tolist() == [2.0, 2.0]


@pytest.mark.parametrize("task", [Classification, LanguageModeling])
@pytest.mark.parametrize("method", ["init", "loss", "predict"])
def test_a_task_has_the_methods_of_the_protocol_and_their_arguments(task, method):
    expected = list(inspect.signature(getattr(Task, method)).parameters)
    assert list(inspect.signature(getattr(task, method)).parameters) == expected
