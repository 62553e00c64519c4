import pytest

from jaxtrain import launch
from jaxtrain.cli import launch_command
from jaxtrain.errors import ConfigError


@pytest.fixture
def launched(monkeypatch, tmp_path):
    """What the command would start."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.py").write_text(
        "from jaxtrain import default_config\n\n\ndef get_config():\n    config = default_config()\n    return config\n"
    )
    found = []

    def start(group, max_restarts, say):
        found.append((group, max_restarts))
        return 7

    monkeypatch.setattr(launch, "launch", start)
    return found


def test_its_own_flags_are_taken_and_the_others_go_to_the_processes(launched):
    argv = [
        "--processes=3",
        "--config=c.py",
        "--max_restarts",
        "2",
        "--config.seed=4",
        "--devices_per_process=2",
        "--fresh",
    ]
    assert launch_command.main(argv) == 7
    ((group, max_restarts),) = launched
    assert (group.num_processes, group.devices_per_process, max_restarts) == (3, 2, 2)
    assert group.arguments == ["--config=c.py", "--config.seed=4", "--fresh"]
    assert str(group.checkpoints_dir) == "runs/c/checkpoints"
    launch_command.main(["--processes=1", "--config=c.py", "--workdir=here"])
    assert str(launched[1][0].output_dir) == "here/logs"


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--config=c.py"], "--processes"),
        (["--processes=two", "--config=c.py"], "--processes=two"),
        (["--processes=2"], "a config is needed"),
    ],
)
def test_what_cannot_be_started_is_refused(argv, named, launched):
    with pytest.raises(ConfigError, match=named):
        launch_command.main(argv)
    assert launched == []


def test_help_is_printed(capsys):
    assert launch_command.main(["--help"]) == 0
    assert "--max_restarts" in capsys.readouterr().out
