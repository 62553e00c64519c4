"""The command line: `python -m jaxtrain --config=F` and its subcommands."""

import sys

from jaxtrain.cli import main

if __name__ == "__main__":
    sys.exit(main())
