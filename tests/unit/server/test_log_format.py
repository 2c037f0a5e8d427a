"""A broker's log as JSON: one object per line, with the traceback of an error."""

from __future__ import annotations

import json
import logging
import sys

from klamm.server.log_format import JsonFormatter


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
