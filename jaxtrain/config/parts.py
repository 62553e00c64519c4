"""Keys of what is plugged in: anything with a `type`, and the examples."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

from jaxtrain.config import limits
from jaxtrain.config.limits import Count, CountOrZero, Name

Options = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Spec:
    """Anything pluggable."""

    # What to build: "package.module:Name"; from Python also the object itself, which then takes no options.
    type: Annotated[Any, limits.import_path("my_package.my_module:MyClass")] = ""
    # What the signature of `type` takes; a nested Spec is built first.
    options: Options = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Data:
    """The examples to train on."""

    # The source: an object with `__len__` and `__getitem__`.
    type: Annotated[Any, limits.import_path("jaxtrain.data.text:TextFiles")] = ""
    # What the signature of `type` takes.
    options: Options = dataclasses.field(default_factory=dict)
    # Applied to each example, in this order.
    transforms: Annotated[Mapping[str, Spec], Name] = dataclasses.field(default_factory=dict)
    # Batches to train on, again and again, which the first examples make; 0 takes all.
    num_batches: CountOrZero = 0
    # Draw a new order of the examples for each epoch.
    shuffle: bool = True
    # Processes that read and transform examples in training; 0 uses threads, as evaluations always do.
    num_workers: CountOrZero = 0
    # Batches prepared ahead of the step that takes them.
    prefetch: Count = 2
    # Examples that may fail to read before the run ends; they are left out and counted.
    max_bad_examples: CountOrZero = 0


@dataclasses.dataclass(frozen=True)
class EvalData:
    """The examples to evaluate on."""

    # The source; "" takes `data.type` and `data.options`, over which the options here win.
    type: Annotated[Any, limits.import_path("jaxtrain.data.text:TextFiles", empty="as in data")] = ""
    # What the signature of `type` takes.
    options: Options = dataclasses.field(default_factory=dict)
    # Applied to each example, in this order; those of `data` are not.
    transforms: Annotated[Mapping[str, Spec], Name] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Eval:
    """One evaluation. Its name is its `split` in metrics.jsonl."""

    data: EvalData = EvalData()
    # Time between evaluations; "" evaluates only after the last step.
    every: Annotated[str, limits.length(empty="only after the last step")] = ""
    # Examples per batch; 0 takes the batch size of training.
    batch_size: CountOrZero = 0
    # Batches to evaluate on; 0 takes all.
    num_batches: CountOrZero = 0
