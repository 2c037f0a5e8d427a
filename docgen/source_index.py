"""Finds classes and functions of klamm by name, so that pages follow them when files move."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = ROOT / "src" / "klamm"
DEFINITIONS: Final = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def definitions() -> dict[str, tuple[Path, ...]]:
    """The files that define each class or function at their top level, and each `Class.method`."""
    found: dict[str, list[Path]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, DEFINITIONS):
                found.setdefault(node.name, []).append(path)
            if isinstance(node, ast.ClassDef):
                for name in dict.fromkeys(part.name for part in node.body if isinstance(part, DEFINITIONS)):
                    found.setdefault(f"{node.name}.{name}", []).append(path)
    return {name: tuple(paths) for name, paths in found.items()}


def file_of(name: str, package: str = "") -> str:
    """`controller/channel_manager.py` of `ControllerChannelManager`. `package` decides between several of the name."""
    paths = [str(path.relative_to(SOURCE)) for path in definitions().get(name, ())]
    inside = [path for path in paths if path.startswith(f"{package}/")] if package else paths
    if len(inside) != 1:
        where = f" in {package}/" if package else ""
        raise LookupError(f"docs/articles.md names {name}{where}, which is defined in: {paths or 'no file'}")
    return inside[0]
