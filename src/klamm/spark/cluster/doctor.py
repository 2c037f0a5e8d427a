"""Checks Spark's requirements on this machine and klamm's settings: behind `klamm spark doctor`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

_PACKAGES: Final = ("pyspark", "pyarrow", "numba", "pandas", "pyyaml", "deltalake", "fastavro", "protobuf")
_OPTIONAL: Final = frozenset({"deltalake", "fastavro", "protobuf"})
_SPARK: Final = "4.3"


@dataclass(frozen=True, slots=True)
class Finding:
    """`state` is ok, warning or failed."""

    what: str
    state: str
    found: str
    advice: str = ""


def findings() -> Iterator[Finding]:
    yield java()
    yield from packages()
    yield from environment()
    yield data_source()
    yield kernel_cache()


def java() -> Finding:
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home, "bin", "java")) if home else shutil.which("java")
    advice = "apt-get install openjdk-17-jre-headless, or set JAVA_HOME"
    if program is None or not Path(program).exists():
        return Finding("Java", "failed", "missing", advice)
    try:
        said = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30).stderr
    except (OSError, subprocess.TimeoutExpired):
        return Finding("Java", "failed", f"{program} does not run", advice)
    found = re.search(r'version "(\d+)[^"]*"', said)
    major = int(found[1]) if found else 0
    text = found[0].split('"')[1] if found else "?"
    return Finding(
        "Java", "ok" if major in (17, 21) else "failed", text, "" if major in (17, 21) else f"17 or 21: {advice}"
    )


def packages() -> Iterator[Finding]:
    for name in _PACKAGES:
        try:
            found = version(name)
        except PackageNotFoundError:
            state = "warning" if name in _OPTIONAL else "failed"
            yield Finding(name, state, "missing", "pip install 'klamm[spark]'")
            continue
        good = name != "pyspark" or found.startswith(_SPARK)
        yield Finding(name, "ok" if good else "warning", found, "" if good else f"klamm is tested with Spark {_SPARK}.")


def environment() -> Iterator[Finding]:
    """Variables that change which Python or Spark runs."""
    python = os.environ.get("PYSPARK_PYTHON")
    if python and Path(shutil.which(python) or python).resolve() != Path(sys.executable).resolve():
        yield Finding("PYSPARK_PYTHON", "warning", python, f"klamm.spark.session() sets it to {sys.executable}.")
    home = os.environ.get("SPARK_HOME")
    if home and "site-packages/pyspark" not in home:
        yield Finding("SPARK_HOME", "warning", home, "Spark is not the pip package's; unset it, or check its version.")


def data_source() -> Finding:
    """Spark finds format("klamm") by importing pyspark_klamm with the Python of its workers."""
    code = "import pyspark_klamm; print(pyspark_klamm.DefaultSource.name())"
    # From elsewhere: a module that is importable only because of the current directory is not installed.
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd="/")
    if done.returncode == 0 and done.stdout.strip() == "klamm":
        return Finding('format("klamm")', "ok", "found by itself")
    reason = (done.stderr.strip().splitlines() or ["?"])[-1]
    return Finding(
        'format("klamm")', "failed", reason, "Install klamm where PYSPARK_PYTHON looks: pip install 'klamm[spark]'"
    )


def kernel_cache() -> Finding:
    """numba keeps compiled kernels beside the source, or where NUMBA_CACHE_DIR says."""
    where = os.environ.get("NUMBA_CACHE_DIR") or str(Path(__file__).parent)
    if os.access(where, os.W_OK) or not Path(where).exists():
        return Finding("kernel cache", "ok", where)
    return Finding(
        "kernel cache", "warning", f"{where} cannot be written", "Set NUMBA_CACHE_DIR, or every worker compiles again."
    )
