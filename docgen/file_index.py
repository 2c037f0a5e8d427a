"""The page with every file of klamm: the beginning of its docstring, and what it defines for others."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from docgen.source_index import DEFINITIONS, SOURCE

_FRONT_END: Final = SOURCE / "dashboard" / "static"
_LEFT_OUT: Final = frozenset({"__init__.py", "__main__.py"})
_HEAD: Final = """# Every file

`make docs` writes this page from the source. Each row has the beginning of the file's docstring, and the public classes
and functions that it defines. `ARCHITECTURE.md` explains how the parts work together, and its tables of changes lead to
several files at once. Search this page for the noun of your change.
"""


def render() -> str:
    parts = [_HEAD]
    for package, paths in _by_package().items():
        parts.append(f"\n## {package}\n\n| file | content | defines |\n|---|---|---|\n")
        parts.extend(_row(path) for path in paths)
    return "".join(parts)


def _by_package() -> dict[str, list[Path]]:
    packages: dict[str, list[Path]] = {}
    for path in sorted(_files(), key=lambda path: (path.parent, path.name)):
        folder = path.parent.relative_to(SOURCE).as_posix()
        packages.setdefault("single modules" if folder == "." else folder, []).append(path)
    return packages


def _files() -> Iterator[Path]:
    yield from (path for path in SOURCE.rglob("*.py") if path.name not in _LEFT_OUT)
    yield from _FRONT_END.glob("*.js")


def _row(path: Path) -> str:
    text, defined = _python(path) if path.suffix == ".py" else (_script(path), [])
    names = ", ".join(f"`{name}`" for name in defined)
    return f"| `{path.name}` | {text.replace('|', chr(92) + '|')} | {names} |\n"


def _python(path: Path) -> tuple[str, list[str]]:
    tree = ast.parse(path.read_text())
    names = [node.name for node in tree.body if isinstance(node, DEFINITIONS) and not node.name.startswith("_")]
    return _first_paragraph(ast.get_docstring(tree) or ""), names


def _script(path: Path) -> str:
    """The comment at the top of a module of the viewer."""
    lines = []
    for line in path.read_text().splitlines():
        if not line.startswith("//"):
            break
        lines.append(line.removeprefix("//").strip())
    return _first_paragraph("\n".join(lines))


def _first_paragraph(text: str) -> str:
    return " ".join(text.split("\n\n")[0].split())
