"""Plain technical English: patterns that make a reader stop are rejected in documents, docstrings and comments.

CONTRIBUTING.md has the rules and a list of words.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

from docgen.pages import PAGES
from tests.support.source_tree import ROOT, modules, text_files

REPLACEMENTS = {
    r"\bone \w+ an? (?:message|API|broker|kind|topic|partition|record|request|connection|group|task|batch)\b": "per",
    r"\b(?:an?|one|two|three) (?:line|file|row|socket|struct call|attempt|thread|task)s? an? "
    r"(?:check|frame|item|row|task|file|partition|topic|broker|record|request|connection|message|second)\b": "per",
    r"\b(?:bytes|times|records|requests|frames) an? (?:second|minute|hour)\b": "per",
    r"\bany ?more\b": "no longer",
    r"\banew\b": "again",
    r"\bat the most\b": "at most",
    r"\btold\b": "learn, receive, report",
    r"\btells?\b": "report, send, log",
    r"\b(?:goes|go|went|going) on\b": "continue",
    r"\bwants? to hear\b": "requires",
    r"\bhears?\b": "receive, learn of",
    r"\b(?:says?|said) of (?:it|them)sel(?:f|ves)\b": "claim, report",
    r"\btak(?:e|es|en) back\b": "cancel, undo",
    r"\blater and later\b": "with exponential back-off",
    r"\bin vain\b": "without effect",
    r"\bfor want of\b": "because there is no",
    r"(?<!there )\b(?:is|are) no (?!longer\b|more\b|less\b|\w+er than\b)": "is not a",
    r"(?:^|(?<=[.:;] ))(?:What|Who) [a-z][^?]*$": "name the subject",
}
"""A pattern, and what to write instead."""

SCRIPTS = ("Makefile", ".ci/run")
"""Scripts whose names have no suffix."""
SENTENCE_SPACES = 2
"""A literal with as many spaces is prose: a message, a help text or a line of the log."""
WORD_LIST = re.compile(r"^\| write \| instead of \|$.*?(?=^$)", re.MULTILINE | re.DOTALL)
SCRIPT_COMMENT = re.compile(r"(?:^|\s)(?:#+|//)\s(.*)$")
FENCE = re.compile(r"^```.*?^```$|^    .*$", re.MULTILINE | re.DOTALL)


def passages_of_markdown(text: str) -> Iterator[str]:
    """Paragraphs, items and table cells, without code."""
    for paragraph in re.split(r"\n\s*\n|\n(?=[-|#\d])", FENCE.sub("", WORD_LIST.sub("", text))):
        yield from paragraph.split(" | ") if paragraph.startswith("|") else [paragraph]


def passages_of_python(text: str) -> Iterator[str]:
    """Docstrings and other literals of several words by paragraph, and comments of successive lines together."""
    nodes = list(ast.walk(ast.parse(text)))
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.count(" ") >= SENTENCE_SPACES:
            yield from re.split(r"\n\s*\n", node.value)
    together, last = "", 0
    for line, comment in comments(text, nodes):
        if line != last + 1:
            yield together
            together = ""
        together, last = f"{together} {comment.lstrip('# ')}", line
    yield together


def passages_of_script(text: str) -> Iterator[str]:
    """Comments and help texts of a shell script or a Makefile, and comments of JavaScript; successive lines together.

    A `#` or `//` that does not follow a space does not begin a comment.
    """
    together, last = "", 0
    for number, line in enumerate(text.split("\n"), 1):
        found = SCRIPT_COMMENT.search(line)
        if found is None or number != last + 1:
            yield together
            together = ""
        if found is not None:
            together, last = f"{together} {found[1]}", number
    yield together


def comments(text: str, nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Line and text of each comment. To split a file into tokens is slow: only if a string may have a `#` too."""
    lines = text.split("\n")
    if not any(has_number_sign(node, lines) for node in nodes):
        yield from ((number, line[line.index("#") :]) for number, line in enumerate(lines, 1) if "#" in line)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def has_number_sign(node: ast.AST, lines: Sequence[str]) -> bool:
    """Whether the node is a string with a `#` on its lines."""
    is_string = isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )
    if not is_string:
        return False
    first, last = node.lineno, node.end_lineno or node.lineno  # type: ignore[attr-defined]
    if first < last:
        return any("#" in line for line in lines[first - 1 : last])
    return "#" in lines[first - 1] and b"#" in lines[first - 1].encode()[node.col_offset : node.end_col_offset]  # type: ignore[attr-defined]


def reader(path: Path) -> Callable[[str], Iterator[str]]:
    """Return the function that splits such a file into passages."""
    if path.suffix == ".py":
        return passages_of_python
    return passages_of_markdown if path.suffix == ".md" else passages_of_script


def passages(path: Path) -> Iterator[str]:
    text = path.read_text()
    for passage in reader(path)(text):
        plain = re.sub(r"`[^`]*`|\"[^\"\n]*\"|<[^>]*>", "x", passage)
        yield re.sub(r"\s+", " ", plain).strip(" |-#*")


def is_prose(path: Path) -> bool:
    """Generated pages repeat the code's own words, which are looked at where they stand."""
    name = str(path.relative_to(ROOT))
    return (
        (path.suffix in (".md", ".py", ".js", ".sh") or name in SCRIPTS)
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


def definitions(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """The names that a module defines or assigns, the keys of its tables (such as mutants), and their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno
        elif isinstance(node, ast.Dict):
            for key in node.keys:
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield key.value, key.lineno


def test_identifiers_are_plain() -> None:
    """Use the verbs of the field: report, notify, receive, learn."""
    odd = {"tell", "tells", "told", "hear", "hears", "heard", "anew"}
    may_be_odd = re.compile(rf"(?:\b|_)(?:{'|'.join(odd)})(?:\b|_)", re.IGNORECASE)
    texts = [(module.place, module.text) for module in modules()]
    folders = ("bench", "compat", "docgen", "examples", "tests")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    texts += [(str(path.relative_to(ROOT)), path.read_text()) for path in paths]
    trees = [(place, ast.parse(text)) for place, text in texts if may_be_odd.search(text)]
    wrong = [
        f"{place}:{line}: {name}"
        for place, tree in trees
        for name, line in definitions(tree)
        if odd & set(name.lower().split("_"))
    ]
    assert not wrong, "\n".join(wrong)


def test_names_of_tests_are_plain() -> None:
    """A name is a sentence with a subject: not "what cannot be", "who asks", "is none any more"."""
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^ *(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE)
        if re.search(
            r"^test_(what|who|whose|nobody)_|_(any_more|anew|goes_on|is_none_\w+|taken_back|nobody)(_|$)", name
        )
    ]
    assert not wrong, "\n".join(wrong)


def test_comments_of_scripts_are_read() -> None:
    script = "#!/bin/sh\n# What is run\n# here.\nmake x # it tells\nurl=http://x/#y\n// in js\n"
    assert [each.strip() for each in passages_of_script(script) if each] == ["What is run here. it tells", "in js"]


def test_the_patterns_find_what_they_are_for() -> None:
    examples = [
        "One class a message. It has one file an API.",
        "A broker is no controller and is told so.",
        "What cannot be is told at once.",
        "Nothing of it is under way any more; the rest goes on.",
        "What is written here is a log.",
        "The controller tells the brokers.",
        "Prints a line a check.",
        "It sends 100 bytes a second.",
    ]
    assert all(any(re.search(pattern, example) for pattern in REPLACEMENTS) for example in examples)
    plain = [
        "There is no leader.",
        "It is no longer the leader.",
        "What is the leader?",
        "A request is no larger than a part.",
        "It gives a request a second name.",
        "A file is damaged if a row a reader needs is missing.",
        "A foretold end of an untold story.",
    ]
    assert not [text for text in plain for pattern in REPLACEMENTS if re.search(pattern, text, re.IGNORECASE)]
