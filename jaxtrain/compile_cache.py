"""Where compiled programs are kept between starts, and whether a directory may be used for that. Imports no jax."""

import os
from pathlib import Path


def default_directory() -> Path:
    """This user's own directory: a compile cache is code, and code of others is not run."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "jaxtrain" / "compile"


def refusal(directory: Path) -> str | None:
    """Say why an existing directory is not used; None: it is."""
    found = directory.stat()
    if not os.access(directory, os.W_OK | os.X_OK):
        return "Permission denied"
    if found.st_uid != os.getuid():
        return "it belongs to another user"
    if found.st_mode & 0o022:
        return "other users may write to it, so chmod go-w it or name another"
    return None
