"""`make site` builds the web site of the documentation, without broken links and without anything from other hosts."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.source_tree import ROOT

LOADED = re.compile(
    r"<(?:script|img|iframe)[^>]*\ssrc=\"?(https?:)?//|<link[^>]*\srel=\"?(?:stylesheet|preconnect)[^>]*https?://"
)


@pytest.mark.long
def test_the_site_is_complete_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    """MkDocs fails at a link to a page or a heading that does not exist, and at a page that no menu leads to."""
    command = ["make", "site", f"SITE={tmp_path}", f"PYTHON={sys.executable}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*.html")}
    sources = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    built = {source.replace("README.md", "index.md").removesuffix(".md") + ".html" for source in sources}
    assert built <= pages.keys()
    assert not [name for name, text in pages.items() if LOADED.search(text)]
    edition = {str(path.relative_to(tmp_path / "playground")) for path in (tmp_path / "playground").rglob("*")}
    assert {"index.html", "worker.js", "viewer.js", "klamm.zip", "pyodide/pyodide.asm.wasm"} <= edition
    linked = [name for name, text in pages.items() if "playground/index.html" in text]
    assert linked, "no page leads to the browser edition"
