"""Configuration files: TOML, with tables flattened by dots, and Java properties. Both keep the line of each key."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from klamm.errors import ConfigError

COMMAND_LINE: Final = "command line"
_SEPARATOR: Final = re.compile(r"(?<!\\)(?:\s*[=:]\s*|\s+)")
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def load_file(path: Path) -> tuple[dict[str, object], dict[str, str]]:
    """Return the values of a file by key, and `file:line` of each.

    A file that does not end with `.toml` has properties.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"The configuration file {path} cannot be read: {reason}.") from None
    return _load_toml(text, path) if path.suffix == ".toml" else _load_properties(text, path)


def parse_overrides(overrides: Iterable[str]) -> dict[str, object]:
    """Parse `key=value` settings of a command line."""
    values: dict[str, object] = {}
    for text in overrides:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"{COMMAND_LINE}: {text!r} is not a setting: expected key=value.")
        values[name.strip()] = value.strip()
    return values


def _load_toml(text: str, path: Path) -> tuple[dict[str, object], dict[str, str]]:
    import tomllib  # imported only for TOML, because a broker should start quickly

    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}.") from None
    values: dict[str, object] = {}
    _flatten(document, "", values)
    lines = text.splitlines()
    return values, {name: f"{path}:{_toml_line(lines, name)}" for name in values}


def _flatten(table: Mapping[str, object], prefix: str, into: dict[str, object]) -> None:
    for name, value in table.items():
        if isinstance(value, dict):
            _flatten(value, f"{prefix}{name}.", into)
        else:
            into[prefix + name] = value


def _toml_line(lines: list[str], name: str) -> int:
    """Return the line of a flattened key: the one whose table and key give the name, else the first line."""
    table = ""
    for number, line in enumerate(lines, 1):
        if header := re.fullmatch(r"\s*\[([^\[\]]+)\]\s*(?:#.*)?", line):
            table = _plain(header[1]) + "."
        elif (left := line.partition("="))[1] and table + _plain(left[0]) == name:
            return number
    return 1


def _plain(key: str) -> str:
    return re.sub(r"[\"'\s]", "", key)


def _load_properties(text: str, path: Path) -> tuple[dict[str, object], dict[str, str]]:
    values: dict[str, object] = {}
    sources: dict[str, str] = {}
    for number, line in _logical_lines(text):
        parts = _SEPARATOR.split(line, maxsplit=1)
        name = _unescape(parts[0])
        values[name] = _unescape(parts[1]).strip() if len(parts) == 2 else ""
        sources[name] = f"{path}:{number}"
    return values, sources


def _logical_lines(text: str) -> Iterable[tuple[int, str]]:
    """Yield the lines without comments. A line that ends with a backslash is joined to the next one."""
    joined, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip() if not joined else line.strip().lstrip()
        if not joined and (not stripped or stripped[0] in "#!"):
            continue
        first = first or number
        joined += stripped
        if (len(joined) - len(joined.rstrip("\\"))) % 2:
            joined = joined[:-1]
            continue
        yield first, joined
        joined, first = "", 0
    if joined:
        yield first, joined


def _unescape(text: str) -> str:
    def replace(found: re.Match[str]) -> str:
        code = found[1]
        return chr(int(code[1:], 16)) if len(code) == 5 else _ESCAPES.get(code, code)

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", replace, text)
