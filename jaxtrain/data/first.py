"""The first examples of a source, as a source of their own."""

from typing import Any


class First:
    """The first `num_examples` of `source`, or all of them; they are read one by one. Everything else is the source's.

    The fingerprint stays that of the whole source.
    """

    def __init__(self, source: Any, num_examples: int):
        self._source = source
        self._num_examples = min(num_examples, len(source))

    def __len__(self) -> int:
        return self._num_examples

    def __getitem__(self, index: int) -> Any:
        return self._source[index]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # a copy that a worker process unpickles looks for some before it has a source
            raise AttributeError(name)
        return getattr(self._source, name)
