"""Files that only their owner may read, replaced as a whole."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def make_private_directory(path: Path) -> None:
    """Create a directory of mode 0700, or restrict an existing one that we own."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.stat().st_mode & 0o077:
        path.chmod(0o700)


def write_private(path: Path, data: bytes) -> None:
    """Write a file of mode 0600. A reader sees the old contents or the new ones, never a part."""
    # mkstemp creates with mode 0600: at no moment can others open it.
    fd, aside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(aside)
        raise
