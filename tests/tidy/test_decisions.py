"""Decision records: every number that is named has a page, and the index lists every page."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ADR = ROOT / "docs" / "adr"
_NAMED = re.compile(r"(?:[Dd]ecision|ADR|docs/adr/|\badr/)\s*(\d{4})")


def pages() -> dict[str, Path]:
    return {path.name[:4]: path for path in ADR.glob("[0-9]*.md")}


def test_every_decision_that_is_named_has_a_page() -> None:
    texts = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py"), *ADR.glob("*.md")]
    texts += [*(ROOT / "bench").rglob("*.py"), *(ROOT / "bench").rglob("*.md"), *(ROOT / "tests").rglob("*.py")]
    known = pages()
    missing = {
        f"{path.relative_to(ROOT)}: {number}"
        for path in texts
        for number in _NAMED.findall(path.read_text())
        if number not in known
    }
    assert not missing


def test_the_index_lists_every_decision_by_its_title() -> None:
    index = (ADR / "README.md").read_text()
    for number, path in pages().items():
        title = path.read_text().splitlines()[0]
        assert title.startswith(f"# {number}: "), path.name
        assert f"[{number}]({path.name})" in index, path.name


def test_every_decision_is_in_the_navigation_of_the_site() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    assert [page.name for page in sorted(ADR.glob("0*.md")) if f"adr/{page.name}" not in navigation] == []
