"""Where a run's numbers go: `metrics.jsonl` is the record, every other writer shows the same numbers elsewhere."""

from jaxtrain.writers.writer import Writer

__all__ = ["Writer"]
