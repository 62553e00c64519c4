import pickle

import pytest

from jaxtrain.data.codec import make_codec
from jaxtrain.errors import DataError


@pytest.fixture
def subwords(tmp_path):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    merges = [("a", "b"), ("ab", "c")]
    letters = pre_tokenizers.ByteLevel.alphabet()
    vocabulary = {token: number for number, token in enumerate([*sorted(letters), "ab", "abc"])}
    made = Tokenizer(models.BPE(vocabulary, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<|endoftext|>"])
    made.enable_truncation(max_length=1)  # must have no effect
    made.save(str(tmp_path / "tokenizer.json"))
    return str(tmp_path / "tokenizer.json")


@pytest.mark.parametrize("text", ["", "def f(x):\n\treturn x", "naïve 漢字 🙂"])
def test_text_comes_back_from_its_tokens(text, subwords):
    for codec in (make_codec(), make_codec(subwords)):
        tokens = codec.encode(text)
        assert codec.decode(tokens) == text
        assert codec.separator not in tokens
        assert all(0 <= token < codec.vocab_size for token in tokens)
        assert pickle.loads(pickle.dumps(codec)).encode(text) == tokens  # worker processes get a copy


def test_a_byte_is_a_token_and_a_merge_is_one(subwords):
    assert make_codec().encode("abc") == [97, 98, 99]
    codec = make_codec(subwords)
    assert len(codec.encode("abc")) == 1
    assert codec.encode_many(["abc", "ab"]) == [codec.encode("abc"), codec.encode("ab")]
    assert (codec.separator, codec.vocab_size) == (258, 259)


def test_bytes_that_are_no_text_are_shown_as_such():
    assert make_codec().decode([97, 0xFF, 98]) == "a\ufffdb"


def test_a_file_that_is_none_and_a_separator_of_bytes_are_refused(tmp_path, subwords):
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(DataError, match="not a tokenizers JSON file"):
        make_codec(str(tmp_path / "other.json"))
    with pytest.raises(DataError, match=r"cannot read .*missing"):
        make_codec(str(tmp_path / "missing.json"))
    with pytest.raises(DataError, match="always byte 0"):
        make_codec(separator="x")
    with pytest.raises(DataError, match="does not know 'xyz'"):
        make_codec(subwords, "xyz")
    assert make_codec(subwords, "ab").separator == 256
