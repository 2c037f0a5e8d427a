"""A broker's log: lines that no name can forge, or JSON, one object per line with the traceback of an error."""

from __future__ import annotations

import json
import logging
import sys

from klamm.server.log_format import TEXT, JsonFormatter, TextFormatter


def formatted(text: str, *arguments: object, with_error: bool = False) -> dict[str, object]:
    information = None
    if with_error:
        try:
            raise KeyError("orders")
        except KeyError:
            information = sys.exc_info()
    record = logging.LogRecord("klamm.server", logging.WARNING, "f.py", 1, text, arguments, information)
    line = JsonFormatter().format(record)
    assert "\n" not in line
    found = json.loads(line)
    assert isinstance(found, dict)
    return found


def test_a_line_is_an_object() -> None:
    found = formatted('broker %d of "%s"\nstarts', 3, "größe")
    assert found["message"] == 'broker 3 of "größe"\nstarts'
    assert (found["level"], found["logger"]) == ("WARNING", "klamm.server")
    assert str(found["at"]).endswith("Z") and isinstance(found["at_ms"], int)
    assert "error" not in found


def test_an_error_has_its_traceback() -> None:
    assert "KeyError: 'orders'" in str(formatted("a request failed", with_error=True)["error"])


def test_a_name_cannot_forge_a_line_of_text() -> None:
    name = "x\n[2026-01-01 00:00:00,000] ERROR forged\r\x1b[2J\x7f\u2028\u202e größe"
    record = logging.LogRecord("klamm.server", logging.INFO, "f.py", 1, "%s timed out", (name,), None)
    line = TextFormatter(TEXT).format(record)
    assert len(line.splitlines()) == 1 and not set(line) & set("\r\x1b\x7f\u202e")
    assert "x\\n[2026" in line and "größe timed out (klamm.server)" in line


def test_the_traceback_of_text_keeps_its_lines() -> None:
    try:
        raise KeyError("orders")
    except KeyError:
        information = sys.exc_info()
    record = logging.LogRecord("klamm.server", logging.ERROR, "f.py", 1, "a request failed", (), information)
    assert len(TextFormatter(TEXT).format(record).splitlines()) > 2
