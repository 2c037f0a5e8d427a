"""The form of a broker's log: lines for people, or one JSON object per line for machines."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Final

TEXT: Final = "[%(asctime)s] %(levelname)s %(message)s (%(name)s)"
FORMATS: Final = ("text", "json")


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
    logging.basicConfig(level=level, format=TEXT, stream=sys.stderr, force=True)
    if form == "json":
        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonFormatter())
