"""The project's own source, as the tidy tests read it."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "klamm"


@dataclass(frozen=True)
class Module:
    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """Parsed at the first use: xdist's processes all collect the tests, and only one of them needs the tree."""
        return ast.parse(self.text, str(self.path))

    @property
    def name(self) -> str:
        """`klamm.log.segment`; a package is its directory's name."""
        parts = self.path.relative_to(SOURCE.parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def place(self) -> str:
        return str(self.path.relative_to(ROOT))

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes of the tree."""
        return tuple(ast.walk(self.tree))

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        return (node for node in self.nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))

    def imports(self) -> Iterator[tuple[str, int]]:
        """Every module or name that is imported, in full, and the line: `klamm.log.segment.Segment`."""
        for node in self.nodes:
            if isinstance(node, ast.Import):
                yield from ((alias.name, node.lineno) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)

    def uses(self, names: Collection[str]) -> Iterator[tuple[str, int]]:
        """Every use of one of the attributes (`asyncio.Lock`), and its line."""
        last = {name.rpartition(".")[2] for name in names}
        for node in self.nodes:
            # Most attributes have another name, and to write a node out is slow.
            if isinstance(node, ast.Attribute) and node.attr in last and (name := ast.unparse(node)) in names:
                yield name, node.lineno


@cache
def modules() -> tuple[Module, ...]:
    paths = sorted(SOURCE.rglob("*.py"))
    return tuple(Module(path, path.read_text()) for path in paths)


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
