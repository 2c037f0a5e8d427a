"""Which names a topic may have. A name becomes a directory, so nothing else may reach the disk."""

from __future__ import annotations

import re
from typing import Final

_LEGAL_NAME: Final = re.compile(r"[a-zA-Z0-9._\-]{1,249}")


def is_valid_topic_name(name: str) -> bool:
    return _LEGAL_NAME.fullmatch(name) is not None and name not in (".", "..")
