"""Rows 28, 29 and 34 of the faults: secrets that are missing or must stay hidden, and a compile cache that fails."""

import contextlib
import gzip
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import tensorstore

from tests import mounts, runner
from tests.faults import trial
from tests.faults.trial import COMMAND, assert_same_run

TOKEN, PASSWORD, SIGNATURE, LITERAL = "tok-7Kd92Lq", "pass-Xw41Pz", "sig-9QmR27b", "lit-5Tz83Vn"
SENTINELS = (TOKEN, PASSWORD, SIGNATURE, LITERAL)
SECRETS = {
    "SERVICE_TOKEN": TOKEN,
    "STORE_PASSWORD": PASSWORD,
    "STORE_URL": f"https://reader:{PASSWORD}@store.example/rows?user=me&signature={SIGNATURE}",
}
LOG_IN = (
    "--config.data.token=env:SERVICE_TOKEN",
    "--config.data.url=env:STORE_URL",
    "--config.data.account={'name': 'me', 'keys': {'password': 'env:STORE_PASSWORD'}}",
)


def assert_hidden(ended: runner.Finished, directory: Path) -> None:
    """No sentinel is in the output or in any byte below the directory, packed or not."""
    for sentinel in SENTINELS:
        assert sentinel not in ended.stdout + ended.stderr
        assert places(sentinel, directory) == []


def places(text: str, directory: Path) -> list[str]:
    """The files below a directory whose path or content, packed or not, has the text."""
    return [
        str(path.relative_to(directory))
        for path in directory.rglob("*")
        if text in str(path.relative_to(directory)) or any(text.encode() in content for content in contents(path))
    ]


def contents(path: Path) -> Iterator[bytes]:
    """The bytes of a file, and those inside if it is compressed or one of the databases that arrays are stored in."""
    if not path.is_file():
        return
    packed = path.read_bytes()
    yield packed
    for unpack in (gzip.decompress, zlib.decompress):
        with contextlib.suppress(OSError, EOFError, zlib.error):
            yield unpack(packed)
    if path.name == "manifest.ocdbt":
        arrays = tensorstore.KvStore.open({"driver": "ocdbt", "base": f"file://{path.parent}/"}).result()
        for key in arrays.list().result():
            yield key
            yield arrays.read(key).result().value


def test_a_secret_that_is_not_in_the_environment_is_refused_before_compiling(cli, here):
    ended = cli.run(*COMMAND, *LOG_IN, env={**SECRETS, "STORE_PASSWORD": None})
    assert ended.returncode == 2, ended.output
    assert "the environment variable STORE_PASSWORD is not set" in ended.stderr
    assert "--config.data.account" in ended.stderr
    assert "Traceback" not in ended.output
    assert ended.stdout == ""
    assert not (here / "w/config.json").exists()


def test_secrets_of_a_run_are_in_no_byte_of_its_workdir_and_output(cli, here, reference):
    # The token is also given by a flag that nothing marks as secret.
    command = (*COMMAND, *LOG_IN, "--config.name=run-" + TOKEN)
    ended = cli.run(*command, env=SECRETS)
    assert ended.returncode == 0, ended.output
    assert_hidden(ended, here / "w")
    assert_same_run(here / "w", reference)
    assert "<redacted>" in (here / "w/manifest.json").read_text()
    assert "env:STORE_PASSWORD" in (here / "w/config.json").read_text()
    # What is no secret is found, so the search does look everywhere.
    (here / "w/packed.gz").write_bytes(gzip.compress(b"accuracy"))
    assert {name.partition("/")[0] for name in places("accuracy", here / "w")} >= {
        "metrics.jsonl",
        "tensorboard",
        "logs",
        "packed.gz",
    }
    assert "checkpoints/12/default/manifest.ocdbt" in places("params/Dense_0/kernel/.zarray", here / "w")


@pytest.mark.parametrize("where", ["a source, in training", "a model, while it is traced"])
def test_secrets_in_the_text_of_an_exception_are_hidden(cli, here, where):
    leak = "--config.data.leaks=true" if "source" in where else "--config.task.model.type=tests.faults.parts:Leaky"
    ended = cli.run(*COMMAND, *LOG_IN, leak, env=SECRETS)
    assert ended.returncode == (1 if "source" in where else 2), ended.output
    assert "<redacted>" in ended.stderr
    assert ("Traceback" in ended.stderr) == ("source" in where)
    assert_hidden(ended, here / "w")
    if "source" in where:
        assert "<redacted>" in (here / "w/logs/process-0.log").read_text()
        assert "<redacted>" in trial.status(here / "w")["reason"]


def test_literal_secrets_are_refused_and_shown_nowhere(cli, here):
    (here / "literal.py").write_text(
        "import tiny\n"
        "def get_config():\n"
        "    config = tiny.get_config()\n"
        f"    config.data.token = '{LITERAL}'\n"
        f"    config.data.account = {{'name': 'me', 'deep': {{'api_key': '{LITERAL}'}}}}\n"
        "    return config\n"
    )
    flags = (
        f"--config.data.url=https://me:{LITERAL}@store.example/x",
        f"--config.callbacks.tracker.type=https://store.example/?access_token={LITERAL}",
        f"--config.callbacks.gate.password={LITERAL}",
        f"--config.tokn={LITERAL}",
    )
    ended = cli.run("--config=literal.py", "--workdir=w", *flags)
    assert ended.returncode == 2, ended.output
    for key in ("data.token", "data.account.deep.api_key", "data.url", "callbacks.gate.password"):
        assert f"--config.{key}" in ended.stderr
    assert "write --config.data.token=env:TOKEN" in ended.stderr
    assert "Traceback" not in ended.output
    assert LITERAL not in ended.stdout + ended.stderr
    assert not (here / "w").exists()


def test_a_compile_cache_that_cannot_be_written_is_a_warning(cli, here, reference):
    cache = here / "cache"
    cache.mkdir()
    with mounts.read_only(cache):
        ended = cli.run(*COMMAND, f"--config.compile_cache={cache}", env={"JAX_COMPILATION_CACHE_DIR": None})
    assert ended.returncode == 0, ended.output
    assert f"compile cache {cache} not used: " in ended.stdout
    assert_same_run(here / "w", reference)


def test_a_compile_cache_that_is_corrupt_is_a_warning(cli, here, reference):
    cache = here / "cache"
    command = ("--config=tiny.py", f"--config.compile_cache={cache}")
    environment = {"JAX_COMPILATION_CACHE_DIR": None}
    assert cli.run(*command, "--workdir=first", env=environment).returncode == 0
    assert os.stat(cache).st_mode & 0o777 == 0o700
    for number, path in enumerate(sorted(cache.glob("*-cache"))):
        content = bytearray(path.read_bytes())
        if number % 3 == 0:
            content = content[: len(content) // 2]
        elif number % 3 == 1:
            content = bytearray(b"nonsense" * 100)
        else:
            content[len(content) // 2] ^= 4
        path.write_bytes(content)
    ended = cli.run(*command, "--workdir=w", env=environment)
    assert ended.returncode == 0, ended.output
    assert "WARNING" in ended.stdout
    assert_same_run(here / "w", reference)
    assert_same_run(here / "first", reference)
