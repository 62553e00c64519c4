import shutil
import sys

import numpy as np
import pytest

from jaxtrain.data import text
from jaxtrain.data.text import TextFiles
from jaxtrain.errors import DataError

ALL = {"train": 1.0}


@pytest.fixture
def root(tmp_path):
    directory = tmp_path / "source"
    files = {
        "a.py": "alpha\n",
        "empty.py": "",
        "notes.txt": "not code",
        "package/b.py": "beta é\n",
        "package/tests/c.py": "gamma\n",
        "vendored/d.py": "delta\n",
    }
    for name, content in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(content)
    return directory


def everything(source):
    """Return the targets of all examples in order, masked ones left out."""
    return np.concatenate([source[i]["tokens"][1:][source[i]["mask"]] for i in range(len(source))])


@pytest.mark.parametrize("seq", [1, 5, 1000])
def test_no_byte_is_lost_and_files_are_told_apart_by_byte_0(root, seq):
    source = TextFiles(root, "train", seq, splits=ALL)
    wanted = "alpha\n\0beta é\n\0gamma\n\0delta\n".encode()
    assert bytes(everything(source).astype(np.uint8)) == wanted
    assert source[0]["tokens"][0] == 0
    assert source.vocab_size == 256


def test_patterns_and_exclude_choose_files_by_relative_path(root):
    def names(**options):
        return TextFiles(root, "train", 8, splits=ALL, **options).files

    assert names() == ["a.py", "empty.py", "package/b.py", "package/tests/c.py", "vendored/d.py"]
    assert names(exclude=("vendored", "**/tests", "empty.py")) == ["a.py", "package/b.py"]
    assert names(patterns=("package/*",)) == ["package/b.py", "package/tests/c.py"]
    assert names(patterns="**/*.txt") == ["notes.txt"]


def test_splits_share_no_file_and_leave_none_out(tmp_path):
    for number in range(60):
        (tmp_path / f"{number}.py").write_text(f"number {number}\n")
    splits = {"train": 0.5, "validation": 0.3, "test": 0.2}
    files = [name for split in splits for name in TextFiles(tmp_path, split, 8, splits=splits).files]
    assert len(files) == 60
    assert len(set(files)) == 60


def test_the_fingerprint_follows_content_and_not_the_place(root, tmp_path):
    def fingerprint(directory):
        return TextFiles(directory, "train", 8, splits=ALL).fingerprint()

    before = fingerprint(root)
    copy = shutil.copytree(root, tmp_path / "copy")
    assert fingerprint(copy) == before
    (copy / "a.py").write_text("alphA\n")
    assert fingerprint(copy) != before
    (copy / "a.py").rename(copy / "z.py")
    assert fingerprint(copy) != before


def test_the_standard_library_is_a_text(monkeypatch):
    options = {"patterns": ("json/*.py",), "exclude": ("site-packages",), "splits": ALL}
    source = TextFiles("stdlib:", "train", 64, **options)
    assert "json/decoder.py" in source.files
    assert b"JSONDecoder" in bytes(everything(source).astype(np.uint8))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"root": "{root}/gone"}, r"source/gone' does not exist"),
        ({"root": "{root}/a.py"}, r"a\.py' is not a directory"),
        ({"patterns": ("**/*.rs",)}, r"no file below .*source matches patterns=\('\*\*/\*\.rs',\)"),
        ({"patterns": ("empty.py",)}, r"has no text: 1 of 1 files"),
        ({"split": "tarin"}, r"Did you mean 'train'\?"),
        ({"seq": 0}, r"seq=0 must be at least 1"),
        ({"separator": "</s>"}, "needs a tokenizer file"),
        ({"tokenizer": "{root}/gone.json"}, r"cannot read .*gone\.json"),
        ({"tokenizer": "{root}/a.py"}, r"a\.py is not a tokenizers JSON file"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(root, options, message):
    options = {"root": str(root), "split": "train", "seq": 8, "splits": ALL, **options}
    options = {k: v.format(root=root) if isinstance(v, str) else v for k, v in options.items()}
    with pytest.raises(DataError, match=message):
        TextFiles(**options)


def test_a_binary_file_is_refused_with_its_offset(root):
    (root / "b.py").write_bytes(b"ab\0c")
    with pytest.raises(DataError, match=r"b\.py is not text: byte 0 at offset 2"):
        TextFiles(root, "train", 8, splits=ALL)


def test_a_file_that_vanishes_is_named(root, monkeypatch):
    found = text._find(root, ("**/*.py",), ())
    monkeypatch.setattr(text, "_find", lambda *_: [*found, "gone.py"])
    with pytest.raises(DataError, match=r"cannot read .*gone\.py: No such file"):
        TextFiles(root, "train", 8, splits=ALL)


@pytest.fixture
def tokenizer(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["<unk>", "<|endoftext|>", "alpha", "beta", "gamma", "delta", "é"]
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.enable_truncation(max_length=1)  # must have no effect: it would lose tokens
    made.save(str(tmp_path / "tokenizer.json"))
    return str(tmp_path / "tokenizer.json")


def test_a_tokenizer_file_gives_ids_with_its_own_separator(root, tokenizer):
    source = TextFiles(root, "train", 3, splits=ALL, tokenizer=tokenizer)
    assert source[0]["tokens"][0] == 1
    assert everything(source).tolist() == [2, 1, 3, 6, 1, 4, 1, 5]
    assert source.vocab_size == 7
    other = TextFiles(root, "train", 3, splits=ALL, tokenizer=tokenizer, separator="<unk>")
    assert other[0]["tokens"][0] == 0
    assert other.fingerprint() != source.fingerprint()


def test_a_separator_outside_the_vocabulary_is_refused(root, tokenizer):
    with pytest.raises(DataError, match=r"does not know '<eos>'"):
        TextFiles(root, "train", 3, splits=ALL, tokenizer=tokenizer, separator="<eos>")


def test_with_a_tokenizer_files_must_be_utf_8(root, tokenizer):
    (root / "b.py").write_bytes(b"ab\xff")
    with pytest.raises(DataError, match=r"b\.py is not UTF-8: byte 0xff at offset 2"):
        TextFiles(root, "train", 3, splits=ALL, tokenizer=tokenizer)


def test_without_the_package_the_install_command_is_named(root, tokenizer, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(DataError, match=r"pip install 'jaxtrain\[text\]'"):
        TextFiles(root, "train", 3, splits=ALL, tokenizer=tokenizer)
