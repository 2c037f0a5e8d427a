"""One running broker a test file. The clients are real; nothing of klamm is imported but the cluster that starts it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest

from klamm.testing import LocalCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1) as running:
        yield running


@pytest.fixture(scope="module")
def servers(cluster: LocalCluster) -> str:
    return cluster.bootstrap_servers


@pytest.fixture
def name() -> Callable[[str], str]:
    """Names that no other test uses: `name("orders")` is `orders-1f3a...`."""
    suffix = uuid.uuid4().hex[:8]
    return lambda stem: f"{stem}-{suffix}"
