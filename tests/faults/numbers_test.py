"""Row 18 of the faults: NaN in one microbatch, in every step, in one parameter."""

import json

from tests.faults import trial
from tests.faults.trial import COMMAND, assert_same_run, saved_steps, status


def test_nan_in_one_microbatch_stops_the_run_or_is_skipped_and_counted(cli, here):
    # One row of NaN: 96 positions are twice all 45 rows and six more, so two or three of 12 batches have it.
    command = (*COMMAND, "--config.data.nan=(20,)")
    ended = cli.run(*command)
    assert ended.returncode == 3, ended.output
    assert "Traceback" not in ended.output
    assert "The loss or its gradient is not finite at step" in ended.stderr
    step = int(ended.stderr.partition("at step ")[2].partition(":")[0])
    assert "the first gradient that is not finite is that of Dense_0/bias" in ended.stderr
    assert status(here / "w")["state"] == "nonfinite"
    assert max(saved_steps(here / "w"), default=0) < step

    skipping = (*command, "--config.nonfinite.policy=skip")
    assert cli.run(*skipping).returncode == 0
    assert cli.run(*skipping[:1], *skipping[2:], "--workdir=skipped").returncode == 0
    assert_same_run(here / "w", here / "skipped")
    last = [line for line in trial.lines(here / "skipped") if line["split"] == '"train"'][-1]
    assert json.loads(last["skipped"]) in (2, 3)
    assert json.loads(last["loss"]) < 10


def test_nan_in_every_step_stops_also_a_run_that_skips(cli, here):
    rows = tuple(range(50))
    skipping = ("--config.nonfinite.policy=skip", "--config.nonfinite.limit=3", "--config.log.every=1 steps")
    ended = cli.run(*COMMAND, f"--config.data.nan={rows}", *skipping)
    assert ended.returncode == 3, ended.output
    assert "is not finite at step 1: " in ended.stderr
    assert "3 in a row, 3 in all" in ended.stderr
    assert saved_steps(here / "w") == []
    loss = [json.loads(line["loss"]) for line in trial.lines(here / "w") if line["split"] == '"train"']
    assert loss
    assert {str(value) for value in loss} == {"nan"}


def test_nan_in_a_parameter_is_told_by_its_name(cli, here):
    ended = cli.run(*COMMAND, "--config.task.model.type=tests.faults.parts:BornNaN")
    assert ended.returncode == 3, ended.output
    assert "is not finite at step 1: the parameter scale itself is not finite" in ended.stderr
    assert "Traceback" not in ended.output
    assert saved_steps(here / "w") == []
