"""For all tests: nothing but what every kind needs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, settings

from klamm.local.processes import with_bytecode_cache
from tests.support.command_tree import build_once

# Here, so that processes of xdist and all that tests start have it: some of them would compile for seconds.
os.environ.update(with_bytecode_cache(os.environ))
if "PYTHONPYCACHEPREFIX" in os.environ:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# The duration of an example depends on the load of the machine, not on the code.
settings.register_profile("klamm", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("klamm")


@pytest.fixture(autouse=True, scope="session")
def _own_environment(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests must not find a cluster that a person works with."""
    os.environ.pop("KLAMM_BOOTSTRAP_SERVERS", None)
    os.environ["KLAMM_STATE_DIR"] = str(tmp_path_factory.mktemp("state"))
    # A run in the background of a shell ignores SIGINT, and so would every process that a test interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def _one_tree_of_commands() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        build_once(patch)
        yield


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
SPARK = "spark"
# The groups that take longest, longest first: what is left at the end must be short to be shared evenly. In the long
# forms, FIRST_OF_SPARK has written the archive that the JVMs of the masters map when the playground is done.
LONGEST = [
    "tests/sim/test_transaction_simulation.py",
    "tests/sim/test_controller_simulation.py",
    "tests/sim/test_cluster_simulation.py",
    "tests/viewer/test_playground.py",
    "tests/spark/cluster/test_masters.py",
    "tests/dist/test_wheel.py",
    "tests/cluster/test_cli.py",
    "tests/viewer/test_pages.py",
    "tests/cluster/test_chaos.py",
]
FIRST_OF_SPARK = "tests/spark/test_warmup_live.py"


def group(nodeid: str) -> str:
    """Tests of a group run in one process: those of a file; and those of Spark, which share a session and its JVM.

    The files in spark/cluster share none: they start Spark as a user would.
    """
    file = nodeid.split("::")[0]
    return SPARK if file.startswith("tests/spark/") and not file.startswith("tests/spark/cluster/") else file


def rank(nodeid: str) -> tuple[int, int]:
    """First Spark, the longest group; then the cheap kinds, so that a mistake shows early; then the longest groups."""
    found = group(nodeid)
    if found == SPARK:
        return -1, 0 if nodeid.startswith(FIRST_OF_SPARK) else 1
    kind = nodeid.split("/")[1] if nodeid.startswith("tests/") else ""
    if found in LONGEST:
        return KINDS.index("sim"), LONGEST.index(found)
    return KINDS.index(kind) if kind in KINDS else len(KINDS), len(LONGEST)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: rank(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    """For --dist loadgroup. The marks that xdist has for this are lost on the way with pytest 9.2."""
    if config.getoption("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = group
    return cast(object, scheduler)
