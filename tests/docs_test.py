"""The code in README and docs runs as it stands."""

import re
from pathlib import Path

import pytest

from tests.runner import ROOT

PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))]


def python_blocks(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def run(page: str, folder: Path) -> int:
    blocks = python_blocks((ROOT / page).read_text())
    names = {"workdir": folder, "__name__": "__docs__"}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    return len(blocks)


@pytest.mark.parametrize("page", PAGES)
def test_every_python_block_of_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(page, tmp_path) > 0


def test_a_block_that_fails_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        exec(python_blocks("```python\nassert 1 == 2\n```\n")[0], {})
    del tmp_path


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text()):
            assert ((ROOT / page).parent / target).exists(), f"{page}: {target}"
