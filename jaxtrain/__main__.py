"""The command line: `python -m jaxtrain --config=F` and its subcommands."""

import logging
import os
import sys

from jaxtrain import cli


def main() -> None:
    """Run the command of the command line and end the process with its exit code."""
    code = cli.main()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: it would wait for the threads of a data source that hangs, and for processes that are gone.
    os._exit(code)


if __name__ == "__main__":
    main()
