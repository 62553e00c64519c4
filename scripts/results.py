"""Trains a config through the command line and stores what README and docs say of it.

    python scripts/results.py configs/code_lm.py docs/results/code_lm.json
    python scripts/results.py configs/code_lm.py:long docs/results/code_lm_long.json

Stored are the date, machine, versions, seconds from start to end of the command, the last line of each split and the
line of n-gram tables.
"""

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from jaxtrain.writers.jsonl import read_lines


def main(config: str, out: Path) -> None:
    """Run one config in a workdir of its own and write its result."""
    with tempfile.TemporaryDirectory() as folder:
        workdir = Path(folder) / "run"
        command = [sys.executable, "-m", "jaxtrain", f"--config={config}", f"--workdir={workdir}"]
        started = time.monotonic()
        subprocess.run(command, check=True)
        secs = time.monotonic() - started
        last = {line["split"]: line for line in read_lines(workdir / "metrics.jsonl")}
        log = (workdir / "logs" / "process-0.log").read_text().splitlines()
    report = {
        "config": config,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} cores, {_processor()}",
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in ("jax", "flax", "optax", "orbax-checkpoint")},
        "secs": round(secs, 1),
        "last": last,
        "notes": [line.split(": ", 1)[1] for line in log if "first step after" in line or "tables counted" in line],
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=2) + "\n")


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
