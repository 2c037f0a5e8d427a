"""klamm's own source as an archive for `--py-files`: executors then need its dependencies, but not klamm."""

from __future__ import annotations

import hashlib
import tempfile
import zipfile
from pathlib import Path

import klamm

_PACKAGES = ("klamm", "pyspark_klamm", "pyspark_klamm_delta")


def source_archive(directory: Path | None = None) -> Path:
    """Return a zip of the packages, named by its content and created once."""
    root = Path(klamm.__file__).parents[1]
    files = sorted(path for package in _PACKAGES for path in (root / package).rglob("*.py"))
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    archive = (directory or Path(tempfile.gettempdir())) / f"klamm-{digest.hexdigest()[:12]}.zip"
    if not archive.exists():
        with (
            tempfile.NamedTemporaryFile(dir=archive.parent, delete=False) as temporary,
            zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as made,
        ):
            for path in files:
                made.write(path, path.relative_to(root).as_posix())
        Path(temporary.name).replace(archive)
    return archive
