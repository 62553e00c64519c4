"""Image files in one directory for each class."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from jaxtrain.data.fingerprint import combine, file_digest
from jaxtrain.data.splits import check_splits, in_split
from jaxtrain.errors import DataError

SUFFIXES = (".png", ".jpg", ".jpeg")
_DIGESTED = 32  # files whose content is part of the fingerprint


class ImageFolder:
    """The files root/CLASS/**/*.png, .jpg or .jpeg, by class and name; needs the extra `images`.

    Example: image [height, width, 3] uint8, label [] int32. Sizes are those of the files: a transform must make them
    equal, as `RandomResizedCrop` and `CenterCrop` of data/augment.py do, and `Normalize` makes them float.

    split, splits: which files; "" takes all of them. A file belongs to one split by the hash of its path below root:
        new files move none.
    classes: names of the directories in the order of their labels; () takes all there are, sorted. Name them where
        another root, for validation, might lack one.
    """

    def __init__(
        self,
        root: str,
        split: str = "",
        splits: Mapping[str, float] | None = None,
        classes: Sequence[str] = (),
    ):
        try:
            import PIL.Image  # noqa: F401  (an optional extra; asked for here, so that a run ends before it begins)
        except ImportError as error:
            raise DataError("reading images needs Pillow: pip install 'jaxtrain[images]'") from error
        if bool(split) != (splits is not None):
            raise DataError("split and splits belong together: name the fractions, or take all files with neither")
        directory = Path(root).expanduser()
        if not root or not directory.is_dir():
            raise DataError(
                f"root={root!r} {'is not a directory' if root and directory.exists() else 'does not exist'}"
            )
        found = sorted(entry.name for entry in os.scandir(directory) if entry.is_dir() and entry.name[0] != ".")
        self.classes = tuple(classes) or tuple(found)
        if missing := [name for name in self.classes if name not in found]:
            raise DataError(f"root={root!r} has no directory for classes {', '.join(missing)}")
        if unknown := [name for name in found if name not in self.classes]:
            raise DataError(f"root={root!r} has directories that are not in classes: {', '.join(unknown)}")
        self.root = str(directory)
        bounds = check_splits(splits, split)[split] if splits is not None else (0.0, 1.0)
        files = [
            (name, label)
            for label, class_name in enumerate(self.classes)
            for name in _find(directory, class_name)
            if in_split(name, bounds)
        ]
        if not files:
            raise DataError(f"root={root!r} has no {', '.join(SUFFIXES)} file in a directory of its own class")
        self.files = [name for name, _ in files]
        self.labels = np.array([label for _, label in files], np.int32)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return {"image": read_image(os.path.join(self.root, self.files[index])), "label": self.labels[index]}

    def fingerprint(self) -> str:
        """Return the digest of the split's file names and sizes, and of the content of 32 files spread over it."""
        paths = [os.path.join(self.root, name) for name in self.files]
        sizes = [os.path.getsize(path) for path in paths]
        digested = np.unique(np.linspace(0, len(paths) - 1, _DIGESTED).astype(int))
        return combine([*self.classes, *self.files, *sizes, *(file_digest(paths[number]) for number in digested)])


def read_image(path: str) -> np.ndarray:
    """Decode a file: [height, width, 3] uint8; grey and palette images become RGB, transparency is dropped.

    Raises OSError for a file that cannot be read or is no image.
    """
    import PIL.Image

    with PIL.Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def _find(directory: Path, class_name: str) -> list[str]:
    """Return the paths of a class's images below the directory, sorted, with `/` on every system."""
    names = []
    for parent, _, files in os.walk(directory / class_name):
        prefix = Path(parent).relative_to(directory).as_posix()
        names += [f"{prefix}/{name}" for name in files if name.lower().endswith(SUFFIXES)]
    return sorted(names)
