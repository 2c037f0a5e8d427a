"""The directory of klamm's own files of a user, such as the state of running pipelines and clusters."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

STATE_VARIABLE: Final = "KLAMM_STATE_DIR"


def state_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the state directory: KLAMM_STATE_DIR, or `klamm` in the user's state directory."""
    if given := environment.get(STATE_VARIABLE):
        return Path(given)
    base = environment.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base, "klamm")
