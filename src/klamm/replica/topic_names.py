"""Valid topic names. A name becomes a directory, so no other name may reach the disk."""

from __future__ import annotations

import re
from typing import Final

_LEGAL_NAME: Final = re.compile(r"[a-zA-Z0-9._\-]{1,249}")


def is_valid_topic_name(name: str) -> bool:
    return _LEGAL_NAME.fullmatch(name) is not None and name not in (".", "..")
