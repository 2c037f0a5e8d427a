"""Plain technical English: patterns that make a reader stop are rejected in documents, docstrings and comments.

CONTRIBUTING.md has the rules and a list of words.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from docgen.pages import PAGES
from tests.support.source_tree import ROOT, text_files

REPLACEMENTS = {
    r"\bone \w+ an? (?:message|API|broker|kind|topic|partition|record|request|connection|group|task|batch)\b": "per",
    r"\bany ?more\b": "no longer",
    r"\banew\b": "again",
    r"\bat the most\b": "at most",
    r"\b(?:is|are|was|were|be|been|being) told\b": "learn, receive, report",
    r"\b(?:goes|go|went|going) on\b": "continue",
    r"\bwants? to hear\b": "requires",
    r"\bhears? (?:of|a|an|the|from)\b": "receive, learn of",
    r"\b(?:says?|said) of (?:it|them)sel(?:f|ves)\b": "claim, report",
    r"\btak(?:e|es|en) back\b": "cancel, undo",
    r"\blater and later\b": "with exponential back-off",
    r"\bin vain\b": "without effect",
    r"\bfor want of\b": "because there is no",
    r"(?<!there )\b(?:is|are) no (?!longer\b|more\b|less\b|\w+er than\b)": "is not a",
    r"(?:^|(?<=[.:;] ))(?:What|Who) (?!(?:is|are|was|does|do|can|will|would|should)\b)[a-z][^?]*$": "name the subject",
}
"""A pattern, and what to write instead."""

WORD_LIST = re.compile(r"^\| write \| instead of \|$.*?(?=^$)", re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^```.*?^```$|^    .*$", re.MULTILINE | re.DOTALL)


def passages_of_markdown(text: str) -> Iterator[str]:
    """Paragraphs, items and table cells, without code."""
    for paragraph in re.split(r"\n\s*\n|\n(?=[-|#\d])", FENCE.sub("", WORD_LIST.sub("", text))):
        yield from paragraph.split(" | ") if paragraph.startswith("|") else [paragraph]


def passages_of_python(text: str) -> Iterator[str]:
    """Docstrings (of attributes, too) by paragraph, and comments of successive lines together."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from re.split(r"\n\s*\n", node.value.value)
    comment, last = "", 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != last + 1:
                yield comment
                comment = ""
            comment, last = f"{comment} {token.string.lstrip('# ')}", token.start[0]
    yield comment


def passages(path: Path) -> Iterator[str]:
    text = path.read_text()
    found = passages_of_python(text) if path.suffix == ".py" else passages_of_markdown(text)
    for passage in found:
        plain = re.sub(r"`[^`]*`|\"[^\"\n]*\"|<[^>]*>", "x", passage)
        yield re.sub(r"\s+", " ", plain).strip(" |-#*")


def is_prose(path: Path) -> bool:
    """Generated pages repeat the code's own words, which are looked at where they stand."""
    name = str(path.relative_to(ROOT))
    return (
        path.suffix in (".md", ".py")
        and "node_modules" not in path.parts
        and name not in PAGES
        and path != Path(__file__)
    )


@cache
def findings() -> dict[str, list[str]]:
    """By file: the words that were found and what to write instead."""
    found: dict[str, list[str]] = {}
    for path in filter(is_prose, text_files()):
        for passage in passages(path):
            for pattern, instead in REPLACEMENTS.items():
                if match := re.search(pattern, passage, re.IGNORECASE if pattern.startswith("(?<!") else 0):
                    line = f"{match.group(0)[:60]!r}: {instead} (in: {passage[:70]})"
                    found.setdefault(str(path.relative_to(ROOT)), []).append(line)
    return found


def test_prose_is_plain() -> None:
    wrong = [f"{name}: {line}" for name, lines in findings().items() for line in lines]
    assert not wrong, "\n".join(wrong)


def test_the_patterns_find_what_they_are_for() -> None:
    examples = [
        "One class a message. It has one file an API.",
        "A broker is no controller and is told so.",
        "What cannot be is told at once.",
        "Nothing of it is under way any more; the rest goes on.",
    ]
    assert all(any(re.search(pattern, example) for pattern in REPLACEMENTS) for example in examples)
    plain = [
        "There is no leader.",
        "It is no longer the leader.",
        "What is the leader?",
        "A request is no larger than a part.",
    ]
    assert not [text for text in plain for pattern in REPLACEMENTS if re.search(pattern, text, re.IGNORECASE)]
