"""`klamm spark shell`, on the session that the tests share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from klamm.cli.app import app


def test_a_shell(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Typed statements run with `spark` and `ks` defined; errors are printed and do not end the shell."""

    @contextmanager
    def shared(master: str, app_name: str, conf: Mapping[str, str]) -> Iterator[SparkSession]:
        assert (master, conf) == ("local[2]", {"a": "b"})
        yield spark

    monkeypatch.setattr("klamm.cli.spark.spark_session", shared)
    typed = "spark.range(40).count() + 2\n1 / 0\nfor n in range(2):\n    print(ks.__name__, n)\n\n"
    done = CliRunner().invoke(
        app, ["spark", "shell", "-m", "local[2]", "-c", "a=b"], input=typed, catch_exceptions=False
    )
    assert done.exit_code == 0
    assert "42\n" in done.stdout and "klamm.spark 0\nklamm.spark 1\n" in done.stdout
    assert "`spark` is the session" in done.stderr and "ZeroDivisionError" in done.stderr
