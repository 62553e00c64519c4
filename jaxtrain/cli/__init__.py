"""The subcommands, one small file each, and what all of them share: how they end."""

import importlib
import os
import sys
import traceback
from collections.abc import Sequence

from jaxtrain.errors import EXIT_ERROR, JaxtrainError
from jaxtrain.redact import redact

# Subcommand -> the module with its `main(argv) -> exit code`, and what it does.
COMMANDS = {
    "train": ("jaxtrain.cli.train_command", "train or resume a run (the default)"),
    "launch": ("jaxtrain.cli.launch_command", "train with several processes of this machine"),
    "evaluate": ("jaxtrain.cli.evaluate_command", "run the evaluations of a run on one of its checkpoints"),
    "generate": ("jaxtrain.cli.generate_command", "continue prompts with a run's language model"),
    "export": ("jaxtrain.cli.export_command", "write a checkpoint's parameters as safetensors, and its config"),
    "doctor": ("jaxtrain.cli.doctor_command", "say whether this machine is fit for a run"),
    "config": ("jaxtrain.cli.config_command", "print the resolved config and where each value comes from"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit code (errors.py); a named end is one message, not a traceback."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv[:1] in (["--help"], ["-h"], ["help"]) or not argv:
        print(_usage())
        return 0 if argv else 2
    command = argv.pop(0) if not argv[0].startswith("-") else "train"
    if command not in COMMANDS:
        print(f"There is no command {command!r}. Commands: {', '.join(COMMANDS)}.", file=sys.stderr)
        return 2
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # so that "my_module:MyModel" is found however this was started
    try:
        return importlib.import_module(COMMANDS[command][0]).main(argv)
    except JaxtrainError as error:
        if error.exit_code == EXIT_ERROR:
            print(redact(traceback.format_exc()), file=sys.stderr)
        print(redact(str(error)), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except Exception:  # noqa: BLE001  the one place where an unexpected error becomes an exit code
        print(redact(traceback.format_exc()), file=sys.stderr)
        return EXIT_ERROR


def _usage() -> str:
    lines = [
        "python -m jaxtrain [COMMAND] --config=F[:variant] [--workdir=D] [--config.a.b=value ...]",
        "",
        *(f"  {name:<10} {text}" for name, (_, text) in COMMANDS.items()),
        "",
        "python -m jaxtrain COMMAND --help tells the flags of a command.",
    ]
    return "\n".join(lines)
