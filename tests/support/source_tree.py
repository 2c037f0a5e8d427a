"""The project's own source, as the tidy tests read it."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "klamm"


@dataclass(frozen=True)
class Module:
    path: Path
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        """`klamm.log.segment`; a package is its directory's name."""
        parts = self.path.relative_to(SOURCE.parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def place(self) -> str:
        return str(self.path.relative_to(ROOT))

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))

    def imports(self) -> Iterator[tuple[str, int]]:
        """Every module or name that is imported, in full, and the line: `klamm.log.segment.Segment`."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((alias.name, node.lineno) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


@cache
def modules() -> tuple[Module, ...]:
    paths = sorted(SOURCE.rglob("*.py"))
    return tuple(Module(path, text := path.read_text(), ast.parse(text, str(path))) for path in paths)


@cache
def text_files() -> tuple[Path, ...]:
    """Every text file that belongs to the project."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
        paths = [ROOT / name for name in listed if name]
    except (OSError, subprocess.CalledProcessError):
        folders = ("src", "tests", "bench", "compat", "docs", "docgen", "examples")
        paths = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    return tuple(path for path in paths if path.is_file() and b"\0" not in path.read_bytes()[:1024])
