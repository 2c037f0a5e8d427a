"""The page with every file of klamm: the beginning of its docstring, and what it defines for others."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Final

from docgen.source_index import DEFINITIONS, ROOT, SOURCE

_FRONT_END: Final = SOURCE / "dashboard" / "static"
_LEFT_OUT: Final = frozenset({"__init__.py", "__main__.py"})
_OTHER_FOLDERS: Final = ("docgen", "bench", "compat", "tests")
_HEAD: Final = """# Every file

`make docs` writes this page from the source. Each row has the beginning of the file's docstring, and the public classes
and functions that it defines. `ARCHITECTURE.md` explains how the parts work together, and its tables of changes lead to
several files at once. Search this page for the noun of your change. The packages of `src/klamm` come first, then the
generated pages, measurements and tests.
"""


def render() -> str:
    parts = [_HEAD]
    for package, paths in _by_folder(SOURCE, _product_files()).items():
        parts.append(f"\n## {package}\n\n| file | content | defines |\n|---|---|---|\n")
        parts.extend(f"| `{path.name}` | {_content(path)} | {_defined(path)} |\n" for path in paths)
    others = (path for name in _OTHER_FOLDERS for path in (ROOT / name).rglob("*.py") if path.name not in _LEFT_OUT)
    for folder, paths in _by_folder(ROOT, others).items():
        parts.append(f"\n## {folder}\n\n| file | content |\n|---|---|\n")
        parts.extend(f"| `{path.name}` | {_content(path)} |\n" for path in paths)
    return "".join(parts)


def _product_files() -> Iterator[Path]:
    yield from (path for path in SOURCE.rglob("*.py") if path.name not in _LEFT_OUT)
    yield from _FRONT_END.glob("*.js")


def _by_folder(root: Path, files: Iterable[Path]) -> dict[str, list[Path]]:
    folders: dict[str, list[Path]] = {}
    for path in sorted(files, key=lambda path: (path.parent, path.name)):
        folder = path.parent.relative_to(root).as_posix()
        folders.setdefault("single modules" if folder == "." else folder, []).append(path)
    return folders


def _content(path: Path) -> str:
    text = ast.get_docstring(_tree(path)) or "" if path.suffix == ".py" else _opening_comment(path)
    return " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")


def _defined(path: Path) -> str:
    names = [node.name for node in _tree(path).body if isinstance(node, DEFINITIONS)] if path.suffix == ".py" else []
    # Overloads have one name.
    return ", ".join(f"`{name}`" for name in dict.fromkeys(names) if not name.startswith("_"))


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _opening_comment(path: Path) -> str:
    lines = takewhile(lambda line: line.startswith("//"), path.read_text().splitlines())
    return "\n".join(line.removeprefix("//").strip() for line in lines)
