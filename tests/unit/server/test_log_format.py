"""A broker's log: lines that no name can forge, or JSON, one object per line with the traceback of an error."""

from __future__ import annotations

import json
import logging
import subprocess
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


WITHOUT_FILES = """
import logging, os, resource
from klamm.server.log_format import TEXT, TextFormatter, on_one_line

probe = os.open(os.devnull, os.O_RDONLY)
os.close(probe)
resource.setrlimit(resource.RLIMIT_NOFILE, (probe, probe))
record = logging.LogRecord("klamm", logging.ERROR, "f.py", 1, "%s failed", ("\\x1b[2J\\n",), None)
print(TextFormatter(TEXT).format(record))
controls = [*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0)), *map(chr, (0x2028, 0x202E, 0x2069))]
print(*(on_one_line(control) for control in controls))
"""


def test_a_name_is_escaped_without_a_free_file_descriptor() -> None:
    """Python opened the file of a codec for the first one, and logging printed its own stack in place of the record."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_FILES], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    line, controls = done.stdout.splitlines()
    assert "\\x1b[2J\\n failed (klamm)" in line
    expected = [*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x202E, 0x2069]
    assert controls.split() == [chr(code).encode("unicode_escape").decode() for code in expected]
