"""Image files by class: what is found, how it is decoded, and how it is split."""

import sys

import numpy as np
import PIL.Image
import pytest

from jaxtrain.data.images import ImageFolder, read_image
from jaxtrain.errors import DataError

SPLITS = {"train": 0.5, "validation": 0.5}


def picture(seed, height=5, width=7):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8)


@pytest.fixture
def root(tmp_path):
    for number, name in enumerate(
        ["dog/b.png", "cat/z.png", "cat/a/deep.PNG", "cat/notes.txt", ".hidden/x.png", "top.png"]
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.fromarray(picture(number)).save(path, "PNG")
    return tmp_path


def test_labels_are_the_sorted_directories_and_files_are_in_order(root):
    source = ImageFolder(str(root))
    assert source.classes == ("cat", "dog")
    assert source.files == ["cat/a/deep.PNG", "cat/z.png", "dog/b.png"]
    assert source.labels.tolist() == [0, 0, 1]
    assert len(source) == 3
    for index, seed in enumerate([2, 1, 0]):
        np.testing.assert_array_equal(source[index]["image"], picture(seed))
    assert source[2]["label"] == 1
    assert source[2]["label"].dtype == np.int32


def test_classes_may_be_named_in_an_order_of_ones_own(root):
    source = ImageFolder(str(root), classes=("dog", "cat"))
    assert dict(zip(source.files, source.labels.tolist(), strict=True))["dog/b.png"] == 0
    with pytest.raises(DataError, match="no directory for classes horse"):
        ImageFolder(str(root), classes=("cat", "dog", "horse"))
    with pytest.raises(DataError, match="directories that are not in classes: dog"):
        ImageFolder(str(root), classes=("cat",))


def test_grey_palette_and_transparent_images_become_rgb_and_jpeg_is_read(tmp_path):
    image = PIL.Image.fromarray(picture(0))
    for mode in ("L", "P", "RGBA"):
        image.convert(mode).save(tmp_path / f"{mode}.png")
        found = read_image(str(tmp_path / f"{mode}.png"))
        assert (found.shape, found.dtype) == ((5, 7, 3), np.dtype(np.uint8))
    np.testing.assert_array_equal(read_image(str(tmp_path / "RGBA.png")), picture(0))
    grey = read_image(str(tmp_path / "L.png"))
    np.testing.assert_array_equal(grey[..., 0], grey[..., 2])
    PIL.Image.new("RGB", (6, 4), (200, 100, 50)).save(tmp_path / "flat.jpg", quality=95)
    assert np.abs(read_image(str(tmp_path / "flat.jpg")).astype(int) - (200, 100, 50)).max() <= 3


def many(root, names):
    for name in names:
        (root / "a" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "a" / name).touch()


def test_splits_hold_every_file_exactly_once_and_new_files_move_none(tmp_path):
    many(tmp_path, [f"{number}.png" for number in range(40)])
    before = {split: set(ImageFolder(str(tmp_path), split, SPLITS).files) for split in SPLITS}
    assert before["train"] | before["validation"] == set(ImageFolder(str(tmp_path)).files)
    assert not before["train"] & before["validation"]
    assert min(map(len, before.values())) > 5
    many(tmp_path, [f"new/{number}.jpeg" for number in range(10)])
    for split, files in before.items():
        assert files <= set(ImageFolder(str(tmp_path), split, SPLITS).files)


def test_the_fingerprint_follows_names_and_content_and_not_the_place(root, tmp_path_factory):
    first = ImageFolder(str(root)).fingerprint()
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "copy"
    elsewhere.mkdir()
    for name in ("cat", "dog"):
        (root / name).rename(elsewhere / name)
    assert ImageFolder(str(elsewhere)).fingerprint() == first
    PIL.Image.fromarray(picture(9)).save(elsewhere / "dog" / "b.png")
    changed = ImageFolder(str(elsewhere)).fingerprint()
    (elsewhere / "dog" / "b.png").rename(elsewhere / "dog" / "c.png")
    assert len({first, changed, ImageFolder(str(elsewhere)).fingerprint()}) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"root": ""}, "root='' does not exist"),
        ({"root": "gone"}, "root='gone' does not exist"),
        ({"root": "empty"}, r"has no \.png, \.jpg, \.jpeg file in a directory of its own class"),
        ({"root": "empty", "split": "train"}, "split and splits belong together"),
        ({"root": "empty", "split": "trian", "splits": SPLITS}, r"Did you mean 'train'\?"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=message):
        ImageFolder(**arguments)


def test_a_damaged_file_is_an_error_of_its_example_alone(root):
    path = root / "dog" / "b.png"
    path.write_bytes(path.read_bytes()[:60])
    source = ImageFolder(str(root))
    assert source[0]["image"].shape == (5, 7, 3)
    with pytest.raises(OSError, match=r"b\.png|truncated"):
        source[2]


def test_without_pillow_the_install_command_is_told(root, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(DataError, match=r"pip install 'jaxtrain\[images\]'"):
        ImageFolder(str(root))
