"""Rows 13 and 14 of the faults: data that is missing, damaged or changed, and examples that cannot be decoded."""

import json
import shutil

import numpy as np
import pytest

from tests.faults.trial import COMMAND, assert_same_run, saved_steps

TOKENS = (
    "--config.data.type=jaxtrain.data.tokens:TokenFiles",
    "--config.data.files=tokens.bin",
    "--config.data.seq=8",
    "--config.data.dtype=uint16",
    "--config.data.vocab_size=50",
)


@pytest.mark.parametrize("wrong", ["missing", "truncated", "empty"])
def test_a_file_of_examples_that_cannot_be_read_is_refused_by_name(cli, here, wrong):
    rows = here / "rows.npz"
    content = rows.read_bytes()
    rows.unlink()
    if wrong != "missing":
        rows.write_bytes(content[: len(content) // 2 if wrong == "truncated" else 0])
    ended = cli.run(*COMMAND)
    assert ended.returncode == 2, ended.output
    assert "rows.npz" in ended.stderr
    assert "Traceback" not in ended.output
    assert not (here / "w/config.json").exists()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (np.arange(40, dtype="uint16").tobytes() + b"\1", "tokens.bin is truncated or not uint16: at offset 80"),
        (np.array([1, 2, 60, 3], "uint16").tobytes(), "tokens.bin: token 60 at offset 4"),
    ],
)
def test_a_file_of_tokens_that_is_damaged_is_refused_by_name_and_offset(cli, here, content, told):
    (here / "tokens.bin").write_bytes(content)
    (here / "tokens.py").write_text(
        "from jaxtrain import default_config\n"
        "def get_config():\n"
        "    config = default_config()\n"
        "    config.duration = '1 steps'\n"
        "    config.task.type = 'jaxtrain.tasks.language_modeling:LanguageModeling'\n"
        "    config.task.model = {'type': 'jaxtrain.models.transformer:Transformer', 'num_layers': 1, 'embed': 8,\n"
        "                         'heads': 1, 'max_seq': 8}\n"
        "    return config\n"
    )
    ended = cli.run("--config=tokens.py", "--workdir=w", *TOKENS)
    assert ended.returncode == 2, ended.output
    assert told in ended.stderr
    assert "Traceback" not in ended.output


def test_data_that_changed_since_the_run_began_is_refused(cli, here, reference):
    workdir = shutil.copytree(reference, here / "w")
    shutil.rmtree(workdir / "checkpoints/12")
    content = (here / "rows.npz").read_bytes()
    with np.load(here / "rows.npz") as rows:
        image, label = rows["image"], rows["label"]
    image[7, 2] += 1
    np.savez(here / "rows.npz", image=image, label=label)
    ended = cli.run(*COMMAND)
    assert ended.returncode == 2, ended.output
    assert "the content of --config.data" in ended.stderr
    assert "rows.npz" in ended.stderr
    assert "--workdir=" in ended.stderr
    assert saved_steps(workdir) == [3, 6, 9]
    (here / "rows.npz").write_bytes(content)  # other times of the file, the same bytes
    assert cli.run(*COMMAND).returncode == 0
    assert_same_run(workdir, reference)


def test_an_example_that_cannot_be_decoded_ends_the_run_by_its_number_or_is_counted(cli, here):
    command = (*COMMAND, "--config.data.bad=(5, 17, 33)")
    ended = cli.run(*command)
    assert ended.returncode == 1, ended.output
    named = [index for index in (5, 17, 33) if f"example {index} (position" in ended.stderr]
    assert len(named) == 1
    assert "ValueError: not an image" in ended.stderr
    assert "Traceback" in ended.stderr

    # The same run goes on when it is told how many may be bad, and is then as if it had been told at once.
    tolerant = (*command, "--config.data.max_bad_examples=10")
    ended = cli.run(*tolerant)
    assert ended.returncode == 0, ended.output
    assert cli.run(*tolerant[:1], *tolerant[2:], "--workdir=told").returncode == 0
    assert_same_run(here / "w", here / "told")
    info = json.loads((here / "w/checkpoints/12/manifest.json").read_text())["info"]
    # 96 positions are two epochs of 45 examples, with three bad ones each, and six examples of the third.
    assert info["num_bad"] >= 6
    assert f"skipped bad example {info['num_bad']} of at most 10" in (here / "told/logs/process-0.log").read_text()
