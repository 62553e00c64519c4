"""Look into every level of a jaxpr: loops, calls and rules of custom derivatives included."""

from collections.abc import Callable, Iterator
from typing import Any

import jax


def equations(function: Callable[..., Any], *args: Any) -> Iterator[Any]:
    """Give every equation of the jaxpr of `function(*args)`, at any depth."""
    yield from _walk(jax.make_jaxpr(function)(*args).jaxpr)


def _walk(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for item in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(item, "jaxpr", item)  # a ClosedJaxpr holds one
                if hasattr(inner, "eqns"):
                    yield from _walk(inner)


def largest_array(function: Callable[..., Any], *args: Any) -> int:
    """Number of elements of the largest array that any equation gives, loops' stacked outputs included."""
    return max(getattr(out.aval, "size", 0) for equation in equations(function, *args) for out in equation.outvars)


def count(primitive: str, function: Callable[..., Any], *args: Any) -> int:
    """Number of equations of `primitive`; the body of a loop counts once."""
    return sum(equation.primitive.name == primitive for equation in equations(function, *args))
