import numpy as np
import pytest

from jaxtrain.data.stream import TokenStream


class Counted(TokenStream):
    vocab_size = 1000

    def __init__(self, num_tokens, seq):
        self.num_tokens, self.seq = num_tokens, seq

    def read(self, start, stop):
        assert 0 <= start <= stop <= self.num_tokens
        return np.arange(start, stop)


@pytest.mark.parametrize("seq", [1, 4, 5, 100])
@pytest.mark.parametrize("num_tokens", [2, 5, 9, 10, 101])
def test_every_token_but_the_first_is_a_target_exactly_once(num_tokens, seq):
    stream = Counted(num_tokens, seq)
    examples = [stream[index] for index in range(len(stream))]
    targets = np.concatenate([example["tokens"][1:][example["mask"]] for example in examples])
    np.testing.assert_array_equal(targets, np.arange(1, num_tokens))
    inputs = np.concatenate([example["tokens"][:-1][example["mask"]] for example in examples])
    np.testing.assert_array_equal(inputs, np.arange(num_tokens - 1))


def test_every_example_has_the_stated_shape_and_dtype_also_the_last():
    stream = Counted(num_tokens=10, seq=4)
    assert len(stream) == 3
    for index in range(3):
        example = stream[index]
        assert (example["tokens"].shape, example["tokens"].dtype) == ((5,), np.int32)
        assert (example["mask"].shape, example["mask"].dtype) == ((4,), bool)
    assert stream[2]["tokens"].tolist() == [8, 9, 0, 0, 0]
    assert stream[2]["mask"].tolist() == [True, False, False, False]


def test_zeros_looks_like_an_example():
    stream = Counted(10, 4)
    assert {k: (v.shape, v.dtype) for k, v in stream.zeros().items()} == {
        k: (v.shape, v.dtype) for k, v in stream[0].items()
    }


@pytest.mark.parametrize("index", [-1, 3])
def test_an_index_out_of_range_is_an_error(index):
    with pytest.raises(IndexError, match="of 3"):
        Counted(10, 4)[index]
