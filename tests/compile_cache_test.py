import os

import pytest

from jaxtrain import compile_cache
from tests.mounts import read_only


def test_the_default_is_of_this_user(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert compile_cache.default_directory() == tmp_path / "cache/jaxtrain/compile"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert compile_cache.default_directory() == tmp_path / ".cache/jaxtrain/compile"


@pytest.mark.parametrize(("mode", "word"), [(0o700, None), (0o755, None), (0o720, "chmod go-w"), (0o702, "chmod go-w")])
def test_others_may_not_write_there(tmp_path, mode, word):
    tmp_path.chmod(mode)
    told = compile_cache.refusal(tmp_path)
    assert told is None if word is None else word in told


def test_it_must_be_writable_and_this_users_own(tmp_path):
    with read_only(tmp_path):
        assert compile_cache.refusal(tmp_path) == "Permission denied"
    os.chown(tmp_path, 12345, -1)
    assert compile_cache.refusal(tmp_path) == "it belongs to another user"
