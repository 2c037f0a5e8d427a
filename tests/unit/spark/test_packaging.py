"""Spark finds the source by the name of a top-level package, so that package must be installed with klamm."""

from __future__ import annotations

import pkgutil
import tomllib
from pathlib import Path

import klamm

SOURCES = Path(klamm.__file__).parents[1]


def test_the_package_spark_looks_for_is_among_those_that_are_installed() -> None:
    settings = tomllib.loads((SOURCES.parent / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]
    assert settings == {"where": ["src"]}, "everything under src is installed"
    found = {module.name for module in pkgutil.iter_modules()}
    for name in ("pyspark_klamm", "pyspark_klamm_delta"):
        assert (SOURCES / name / "__init__.py").is_file()
        assert name in found


def test_spark_finds_the_source_and_the_sink_of_tables_by_their_names() -> None:
    import pyspark_klamm
    import pyspark_klamm_delta

    assert pyspark_klamm.DefaultSource.name() == "klamm"
    assert pyspark_klamm_delta.DefaultSource.name() == "klamm_delta"
