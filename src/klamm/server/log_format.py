"""The form of a broker's log: lines for people, or one JSON object per line for machines."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from typing import Final

TEXT: Final = "[%(asctime)s] %(levelname)s %(message)s (%(name)s)"
FORMATS: Final = ("text", "json")
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Ends of lines, escape sequences of terminals, and characters that turn the direction of text."""
_ESCAPES: Final = {
    character: character.encode("unicode_escape").decode()
    for character in map(chr, range(0x2070))
    if _CONTROL.match(character)
}
"""Made here, because the codec is a file that Python opens at first use: no file may be left when a name is logged."""


def on_one_line(text: str) -> str:
    """Escape control characters: clients choose names, and a name must not look like a line of the log."""
    return _CONTROL.sub(lambda found: _ESCAPES[found[0]], text)


class TextFormatter(logging.Formatter):
    """A record is one line, before its traceback."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = on_one_line(record.message)
        return super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """`at` is UTC with milliseconds; `at_ms` joins with the control log, and `error` has the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields: dict[str, object] = {
            "at": f"{at}.{int(record.msecs):03d}Z",
            "at_ms": int(record.created * 1000),
            "level": record.levelname,
            "logger": record.name,
            "thread": record.threadName,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def set_up_logging(level: str, form: str = "text") -> None:
    logging.basicConfig(level=level, stream=sys.stderr, force=True)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter(TEXT))
