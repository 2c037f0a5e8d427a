"""The code blocks of a tutorial: a title names a file to save, a comment before a block is the role of its commands."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.support.source_tree import ROOT

FENCE = re.compile(r'^(?:<!-- (\w+) -->\n)?```(\w+)(?: title="(\S+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    language: str
    title: str | None
    role: str | None
    text: str


def blocks(page: str, kind: str = "tutorials") -> list[Block]:
    """Those with a language, in the order of the page; outputs have none."""
    text = (ROOT / "docs" / kind / page).read_text()
    return [Block(language, title or None, role or None, code) for role, language, title, code in FENCE.findall(text)]
