"""A byte model of a few short files, trained for six steps: what the commands that read a run are shown."""

from pathlib import Path
from typing import Any

from jaxtrain import default_config, train

STEPS = [2, 4, 6]
NUM_FILES = 20


def make_config(folder: Path) -> Any:
    """Six steps with a checkpoint and an evaluation at every other."""
    source = folder / "source"
    source.mkdir(exist_ok=True)
    for number in range(NUM_FILES):
        (source / f"f{number}.py").write_text(f"def f{number}(x):\n    return x + {number}\n")
    config = default_config()
    config.name = "text"
    config.duration = "6 steps"
    config.batch_size = 8
    config.data.type = "jaxtrain.data.text:TextFiles"
    config.data.root, config.data.split, config.data.seq = str(source), "train", 16
    config.task.type = "jaxtrain.tasks.language_modeling:LanguageModeling"
    config.task.model = {
        "type": "jaxtrain.models.transformer:Transformer",
        "num_layers": 1,
        "embed": 16,
        "heads": 2,
        "max_seq": 40,
    }
    config.evals.validation = {"data": {"split": "validation"}, "batch_size": 8, "every": "2 steps"}
    config.log.every = config.checkpoint.every = "2 steps"
    config.log.tensorboard = False
    config.checkpoint.keep_last = 3
    return config


def trained(folder: Path) -> Path:
    """Train it, and give the workdir."""
    result = train(make_config(folder), folder / "run")
    assert (result.status, result.step) == ("finished", 6)
    return folder / "run"


def snapshot(workdir: Path) -> dict[str, tuple[bytes, int]]:
    """Content and time of every file, to see that a command only reads."""
    files = [path for path in workdir.rglob("*") if path.is_file()]
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def damage(workdir: Path, step: int) -> None:
    """Change one byte of the largest file of a checkpoint."""
    path = max((workdir / "checkpoints" / str(step) / "default").rglob("*"), key=lambda path: path.stat().st_size)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
