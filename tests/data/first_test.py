import cloudpickle
import numpy as np
import pytest

from jaxtrain.data.arrays import Arrays
from jaxtrain.data.first import First
from jaxtrain.data.pipeline import Loader

ROWS = Arrays(arrays={"x": np.arange(20, dtype=np.float32)})


def numbers(source, num_batches, **options):
    loader = Loader(source, batch_size=4, num_batches=num_batches, **options)
    try:
        return [batch.arrays["x"].tolist() for batch in loader]
    finally:
        loader.close()


@pytest.mark.parametrize("shuffle", [False, True])
def test_every_batch_is_made_of_the_first_examples(shuffle):
    batches = numbers(First(ROWS, 4), 5, shuffle=shuffle, seed=3)
    assert [sorted(batch) for batch in batches] == [[0.0, 1.0, 2.0, 3.0]] * 5
    assert any(sorted(batch) != [0.0, 1.0, 2.0, 3.0] for batch in numbers(ROWS, 5))


def test_a_source_that_has_fewer_examples_is_taken_whole():
    assert len(First(ROWS, 4)) == 4
    assert len(First(ROWS, 21)) == 20


def test_everything_else_is_the_sources_also_in_a_worker_process():
    first = cloudpickle.loads(cloudpickle.dumps(First(ROWS, 4)))
    assert first.fingerprint() == ROWS.fingerprint()
    assert first.zeros().keys() == {"x"}
    assert len(first) == 4
    assert not hasattr(first, "vocab_size")
