"""Output of the commands: columns to standard output, sentences to standard error, colour on a terminal only."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import NoReturn, TextIO

from klamm.errors import KlammError
from klamm.server.log_format import on_one_line

_BOLD, _DIM, _RED, _GREEN, _YELLOW, _RESET = "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[0m"


class Failure(KlammError):
    """The message of a command that fails with exit code 1: one sentence."""


class OutputGone(Exception):
    """The reader of the output is gone, as in `klamm topic list | head -1`."""


def fail(sentence: str) -> NoReturn:
    raise Failure(sentence)


def say(text: str = "") -> None:
    print(text, flush=True)


def note(text: str) -> None:
    """Print a sentence to standard error."""
    print(text, file=sys.stderr, flush=True)


def bold(text: str, stream: TextIO | None = None) -> str:
    return _styled(_BOLD, text, stream)


def dim(text: str, stream: TextIO | None = None) -> str:
    return _styled(_DIM, text, stream)


def red(text: str, stream: TextIO | None = None) -> str:
    return _styled(_RED, text, stream)


def green(text: str, stream: TextIO | None = None) -> str:
    return _styled(_GREEN, text, stream)


def yellow(text: str, stream: TextIO | None = None) -> str:
    return _styled(_YELLOW, text, stream)


def _styled(code: str, text: str, stream: TextIO | None) -> str:
    return f"{code}{text}{_RESET}" if (stream or sys.stdout).isatty() else text


def json_rows(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[dict[str, object]]:
    """Return the rows of a table as objects: `CONSUMER-ID` and `ConsumerId` become `consumer_id`."""
    keys = [re.sub(r"[^a-z]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()).strip("_") for name in columns]
    return [dict(zip(keys, row, strict=True)) for row in rows]


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, as_json: bool = False) -> None:
    """Print columns as wide as their widest cell, numbers aligned to the right. An empty table has only its head.

    With `as_json` print a JSON array of objects instead.
    """
    if as_json:
        say(json.dumps(json_rows(columns, rows), indent=2))
        return
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max([len(name), *(len(row[i]) for row in cells)]) for i, name in enumerate(columns)]
    numeric = [_is_numeric([row[i] for row in cells]) for i in range(len(columns))]
    say(bold(_line(columns, widths, numeric)))
    for row in cells:
        say(_line(row, widths, numeric))


def _line(row: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    padded = (
        text.rjust(width) if right else text.ljust(width)
        for text, width, right in zip(row, widths, numeric, strict=True)
    )
    return "  ".join(padded).rstrip()


def _cell(value: object) -> str:
    return "-" if value is None or value == "" else on_one_line(str(value))


def _is_numeric(column: Sequence[str]) -> bool:
    given = [text for text in column if text != "-"]
    return bool(given) and all(text.lstrip("-").isdecimal() for text in given)
