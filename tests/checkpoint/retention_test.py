import pytest

from jaxtrain.checkpoint import retention


@pytest.mark.parametrize(
    ("steps", "verified", "keep_last", "gone"),
    [
        ([3], 3, 1, []),
        ([3, 6], 6, 1, [3]),
        ([3, 6, 9, 12], 12, 2, [3, 6]),
        ([3, 6, 9, 12], 9, 1, [3, 6]),  # 12 has not verified yet: it does not count, and 9 stays
        ([3, 6, 9, 12], 3, 1, []),
        ([10, 20, 30, 40], 40, 1, [10, 30]),  # 20 and 40 are kept for good
    ],
)
def test_only_what_a_verified_newer_step_supersedes_goes(steps, verified, keep_last, gone):
    assert retention.superseded(steps, verified, keep_last, lambda step: step % 20 == 0) == gone


def test_stale_directories_go_and_nothing_else(tmp_path):
    stale = ["7.orbax-checkpoint-tmp", "8.orbax-checkpoint-tmp-123", "9.deleted"]
    other = ["7", "damaged", "notes.deleted", "x.orbax-checkpoint-tmp"]
    for name in stale + other:
        (tmp_path / name / "inside").mkdir(parents=True)
    assert retention.remove_stale(tmp_path) == stale
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(other)


def test_directories_set_aside_under_one_step_never_overwrite_each_other(tmp_path):
    for number in (1, 2, 3):
        (tmp_path / "7").mkdir()
        (tmp_path / "7" / str(number)).touch()
        assert retention.set_aside(tmp_path / "7") == tmp_path / "damaged" / f"7-{number}"
    assert [(tmp_path / f"damaged/7-{n}/{n}").exists() for n in (1, 2, 3)] == [True] * 3


def test_a_deleted_checkpoint_is_gone(tmp_path):
    (tmp_path / "7/default").mkdir(parents=True)
    retention.delete(tmp_path / "7")
    assert list(tmp_path.iterdir()) == []
