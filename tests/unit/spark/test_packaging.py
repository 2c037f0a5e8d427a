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
    assert (SOURCES / "pyspark_klamm" / "__init__.py").is_file()
    assert "pyspark_klamm" in {module.name for module in pkgutil.iter_modules()}


def test_its_default_source_is_klamm() -> None:
    from pyspark_klamm import DefaultSource

    assert DefaultSource.name() == "klamm"
