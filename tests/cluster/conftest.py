import pytest

from tests.cluster import group


@pytest.fixture(autouse=True)
def _config(tmp_path):
    group.set_up(tmp_path)
