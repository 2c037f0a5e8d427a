"""`klamm spark warmup` archives the classes of Spark's JVM, and a session uses the archive.

All tests of Spark use this archive too: conftest.py lets this file run first.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.spark_jvm import CACHE, SHORT_LIVED

START = """
import sys
import klamm.spark as ks
options = {"spark.ui.enabled": False, "spark.driver.extraJavaOptions": f"-Xlog:class+load:file={sys.argv[1]}"}
ks.session("local[1]", conf=options).stop()
"""


@pytest.mark.long
def test_a_session_maps_the_classes_that_warmup_kept(tmp_path: Path) -> None:
    shutil.rmtree(CACHE, ignore_errors=True)
    environment = {
        **os.environ,
        "XDG_CACHE_HOME": str(CACHE),
        "KLAMM_SPARK_LOG": str(tmp_path / "spark.log"),
        "SPARK_SUBMIT_OPTS": SHORT_LIVED,
    }
    warmup = [sys.executable, "-m", "klamm.cli.main", "spark", "warmup"]
    done = subprocess.run(warmup, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [archive] = CACHE.glob("klamm/spark-classes-*.jsa")
    assert str(archive) in done.stdout
    left = [path.name for path in archive.parent.iterdir() if "spark-classes" in path.name]
    assert left == [archive.name], "the temporary directory is removed"

    loaded = tmp_path / "loaded"
    started = subprocess.run(
        [sys.executable, "-c", START, str(loaded)], env=environment, capture_output=True, text=True
    )
    assert started.returncode == 0, started.stderr
    lines = loaded.read_text().splitlines()
    context = next(line for line in lines if " org.apache.spark.SparkContext " in line)
    assert "shared objects file (top)" in context
