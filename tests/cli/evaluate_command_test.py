import json
import shutil

import pytest

from jaxtrain import cli
from jaxtrain.writers.jsonl import read_lines
from tests.text_run import damage, snapshot


def line(workdir, step):
    (found,) = [x for x in read_lines(workdir / "metrics.jsonl") if (x["split"], x["step"]) == ("validation", step)]
    return found


@pytest.mark.parametrize(
    ("flags", "step"), [((), 6), (("--step=latest",), 6), (("--step=2",), 2), (("--step", "4"), 4)]
)
def test_the_numbers_are_those_of_the_runs_own_line_and_the_run_is_only_read(text_run, tmp_path, capsys, flags, step):
    before = snapshot(text_run)
    assert cli.main(["evaluate", f"--workdir={text_run}", f"--json={tmp_path / 'e.json'}", *flags]) == 0
    loss, perplexity = (line(text_run, step)[name] for name in ("loss", "perplexity"))
    told = json.loads((tmp_path / "e.json").read_text())
    assert told == {"step": step, "source": "params", "evals": {"validation": {"loss": loss, "perplexity": perplexity}}}
    assert capsys.readouterr().out == f"step {step}  validation  loss {loss}  perplexity {perplexity}\n"
    assert snapshot(text_run) == before


def test_flags_change_what_is_evaluated(text_run, capsys):
    assert cli.main(["evaluate", f"--workdir={text_run}", "--config.evals.train_set.data.split=train"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("step 6  validation  loss 5.")
    assert second.startswith("step 6  train_set  loss 5.")


def test_what_cannot_be_evaluated_is_refused(text_run, tmp_path, capsys):
    shutil.copytree(text_run, tmp_path / "run")
    damage(tmp_path / "run", 6)
    workdir = f"--workdir={tmp_path / 'run'}"
    assert cli.main(["evaluate", workdir, "--step=6"]) == 2
    assert "checkpoints/6 is damaged" in capsys.readouterr().err
    assert cli.main(["evaluate", workdir, "--step=4", "--config.task.model.embed=32"]) == 2
    assert "params/embedding/embedding: saved float32[256, 16], wanted float32[256, 32]" in capsys.readouterr().err
    assert cli.main(["evaluate", workdir, "--stop=4"]) == 2
    assert "--step=4" in capsys.readouterr().err
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    (tmp_path / "run" / "config.json").write_text(json.dumps({**config, "evals": {}}))
    assert cli.main(["evaluate", workdir]) == 2
    assert "there is nothing to evaluate" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_a_failed_storage(text_run, tmp_path, capsys):
    assert cli.main(["evaluate", f"--workdir={text_run}", f"--json={tmp_path / 'nowhere' / 'e.json'}"]) == 4
    assert "e.json cannot be written" in capsys.readouterr().err


def test_help_says_what_is_printed(capsys):
    assert cli.main(["evaluate", "--help"]) == 0
    assert "--step=N|best|latest" in capsys.readouterr().out
