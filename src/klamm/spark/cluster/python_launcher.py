"""A script that starts Python for Spark without Spark's zip files.

Spark puts `pyspark.zip` first on the path of each Python process. Python does not cache bytecode for modules in a zip
file, so each process compiles PySpark again, which takes half a second. A query needs about ten processes. The same
PySpark is installed beside the zip files, with bytecode.
"""

from __future__ import annotations

import os
import shlex
import site
import sys
from pathlib import Path
from typing import Final

NAME: Final = "python"
_SCRIPT: Final = """#!/bin/sh
path=":$PYTHONPATH:"
for zip in {zips}; do
  while case $path in *":$zip:"*) true ;; *) false ;; esac; do
    path="${{path%%":$zip:"*}}:${{path#*":$zip:"}}"
  done
done
path=${{path#:}}
export PYTHONPATH="${{path%:}}"
exec {python} "$@"
"""


def write_launcher(directory: Path) -> Path | None:
    """Write the script into `directory`. Return None if the zip files are needed or the script cannot be executed."""
    if not (zips := unneeded_zips()):
        return None
    path = directory / NAME
    script = _SCRIPT.format(zips=" ".join(map(shlex.quote, zips)), python=shlex.quote(sys.executable))
    written = path.with_name(f".{NAME}.new")
    written.write_text(script)
    written.chmod(0o700)
    written.replace(path)
    # False as well if the file system is mounted with noexec.
    return path if os.access(path, os.X_OK) else None


def unneeded_zips() -> list[str]:
    """Return Spark's zip files if the same PySpark and Py4J are in site-packages, where every process finds them."""
    import py4j
    import pyspark
    from pyspark.find_spark_home import _find_spark_home

    package = Path(pyspark.__file__).parent
    installed = {os.path.realpath(path) for path in _site_packages()}
    if {os.path.realpath(package.parent), os.path.realpath(Path(py4j.__file__).parents[1])} - installed:
        return []
    homes = {_find_spark_home(), os.path.realpath(package)}  # two names of one directory if one is a link
    if {os.path.realpath(home) for home in homes} != {os.path.realpath(package)}:
        return []
    return sorted(str(path) for home in homes for path in Path(home, "python", "lib").glob("*.zip"))


def _site_packages() -> list[str]:
    own = site.getsitepackages()
    return [*own, site.getusersitepackages()] if site.ENABLE_USER_SITE else own
