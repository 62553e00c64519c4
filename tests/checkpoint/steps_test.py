import shutil

import pytest

from jaxtrain.checkpoint.steps import find
from jaxtrain.errors import CheckpointError
from tests.text_run import damage, snapshot


@pytest.fixture
def workdir(text_run, tmp_path):
    shutil.copytree(text_run, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize(("word", "step"), [("latest", 6), ("4", 4), (2, 2)])
def test_a_word_means_one_verified_checkpoint(text_run, word, step):
    found = find(text_run / "checkpoints", word)
    assert (found.step, found.manifest.step) == (step, step)


def test_a_damaged_step_is_refused_and_the_latest_is_then_the_one_before(workdir, caplog):
    damage(workdir, 6)
    before = snapshot(workdir)
    with pytest.raises(CheckpointError, match=r"checkpoints/6 is damaged: the contents of default/.* changed"):
        find(workdir / "checkpoints", 6)
    assert find(workdir / "checkpoints", "latest").step == 4
    assert "step 6 is damaged" in caplog.text
    assert snapshot(workdir) == before


def test_without_any_that_verifies_there_is_none(workdir, tmp_path):
    for step in (2, 4, 6):
        damage(workdir, step)
    for directory in (workdir / "checkpoints", tmp_path / "nowhere"):
        with pytest.raises(CheckpointError, match=r"No checkpoint in .* verifies"):
            find(directory, "latest")


@pytest.mark.parametrize(
    ("word", "told"),
    [("5", "There is 2, 4, 6"), ("lates", "--step=lates: not a step. Use 2, 4, 6, or latest"), (-2, "not a step")],
)
def test_what_is_no_step_is_told_with_those_there_are(text_run, word, told):
    with pytest.raises(CheckpointError) as raised:
        find(text_run / "checkpoints", word)
    assert told in str(raised.value)
