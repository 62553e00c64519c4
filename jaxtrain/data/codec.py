"""Text to tokens and back: bytes, or the subwords of a `tokenizers` JSON file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from jaxtrain.errors import DataError

_USUAL_SEPARATORS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")


class Codec(Protocol):
    """vocab_size: tokens are below it.   separator: the token that stands before each text of the training data."""

    vocab_size: int
    separator: int

    def encode(self, text: str) -> list[int]: ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Give the text of any tokens, also those that no text has."""
        ...


def make_codec(tokenizer: str = "bytes", separator: str = "") -> Codec:
    """Give the codec of "bytes" or of a tokenizer file. Raises DataError.

    separator: a token of that file's vocabulary, by default the first of the usual ones that it has.
    """
    if tokenizer != "bytes":
        return Subwords(tokenizer, separator)
    if separator:
        raise DataError(f"separator={separator!r} needs a tokenizer file; between bytes it is always byte 0")
    return Bytes()


class Bytes:
    """A token is a byte of the UTF-8 text; byte 0, which no text holds, is the separator."""

    vocab_size = 256
    separator = 0

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode(errors="replace")


class Subwords:
    """The tokens of a `tokenizers` JSON file (needs the extra `text`)."""

    def __init__(self, path: str, separator: str = ""):
        self._tokenizer = _load(path)
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        if not separator:
            separator = next((name for name in _USUAL_SEPARATORS if name in vocabulary), "")
        if separator not in vocabulary:
            tried = repr(separator) if separator else f"any of {', '.join(_USUAL_SEPARATORS)}"
            raise DataError(f"{path} does not know {tried}; name a token of its vocabulary with separator")
        self.separator = vocabulary[separator]
        self.vocab_size = max(vocabulary.values()) + 1

    def encode(self, text: str) -> list[int]:
        return self.encode_many([text])[0]

    def encode_many(self, texts: list[str]) -> list[list[int]]:
        """Encode texts in the tokenizer's threads."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch(texts, add_special_tokens=False)]

    def decode(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(list(tokens), skip_special_tokens=False)


def _load(path: str) -> Any:
    try:
        import tokenizers  # an optional extra: byte models do without it
    except ImportError as error:
        raise DataError(
            f"tokenizer={path!r} needs the package tokenizers: pip install 'jaxtrain[text]'. Or use tokenizer='bytes'"
        ) from error
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    try:
        tokenizer = tokenizers.Tokenizer.from_str(content.decode())
    except Exception as error:  # the Rust side raises bare Exception
        raise DataError(f"{path} is not a tokenizers JSON file: {error}") from error
    # Both would lose tokens or invent them: files are cut to length by the stream.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
