"""For all tests: nothing but what every kind needs."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, settings

from klamm.local.processes import _with_bytecode_cache

# Here, so that processes of xdist and all that tests start have it: some of them would compile for seconds.
os.environ.update(_with_bytecode_cache(os.environ))
if "PYTHONPYCACHEPREFIX" in os.environ:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# The duration of an example depends on the load of the machine, not on the code.
settings.register_profile("klamm", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("klamm")


@pytest.fixture(autouse=True, scope="session")
def _own_environment() -> None:
    """Tests must not find a cluster that a person works with."""
    os.environ.pop("KLAMM_BOOTSTRAP_SERVERS", None)
    # A run in the background of a shell ignores SIGINT, and so would every process that a test interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Every JVM that Spark starts lives for seconds here: its compiler and its collector are those for short lives.
    os.environ["SPARK_CONF_DIR"] = str(Path(__file__).parent / "support" / "spark_conf")
    os.environ["SPARK_LAUNCHER_OPTS"] = os.environ["SPARK_DAEMON_JAVA_OPTS"] = (
        "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    )


KINDS = [
    "tidy",
    "unit",
    "wire",
    "property",
    "transcripts",
    "sim",
    "spark",
    "cluster",
    "clients",
    "hostile",
    "viewer",
    "dist",
]
# The groups that take longest, longest first: what is left at the end must be short to be shared evenly.
LONGEST = ["spark", "tests/spark/cluster/test_masters.py", "tests/cluster/test_chaos.py", "tests/cluster/test_cli.py"]


def group(nodeid: str) -> str:
    """Tests of a group run in one process: those of a file; and those of Spark, which share a session and its JVM.

    The files in spark/cluster share none: they start Spark as a user would.
    """
    file = nodeid.split("::")[0]
    return "spark" if file.startswith("tests/spark/") and not file.startswith("tests/spark/cluster/") else file


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The cheap kinds first, so that a mistake shows early; among those that start processes, the longest groups."""

    def rank(item: pytest.Item) -> tuple[int, int]:
        if (found := group(item.nodeid)) in LONGEST:
            return KINDS.index("spark"), LONGEST.index(found)
        kind = item.nodeid.split("/")[1] if item.nodeid.startswith("tests/") else ""
        return KINDS.index(kind) if kind in KINDS else len(KINDS), len(LONGEST)

    items.sort(key=rank)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    """For --dist loadgroup. The marks that xdist has for this are lost on the way with pytest 9.2."""
    if config.getoption("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = group
    return cast(object, scheduler)
