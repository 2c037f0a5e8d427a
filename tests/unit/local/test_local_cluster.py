"""Errors of a LocalCluster that was not started."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from klamm.errors import KlammError
from klamm.testing import LocalCluster


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda cluster: cluster.port(1), "The cluster is not started: use start_all() first."),
        (lambda cluster: cluster.start(1), "The cluster is not started: use start_all() first."),
        (lambda cluster: cluster.zookeeper_connect, "The cluster is not started: use start_all() first."),
        (lambda cluster: cluster.port(9), "There is no broker 9: the cluster has 1, 2."),
        (lambda cluster: cluster.start(9), "There is no broker 9: the cluster has 1, 2."),
    ],
    ids=["port", "start", "ZooKeeper", "port of nobody", "start of nobody"],
)
def test_before_the_start(tmp_path: Path, ask: Callable[[LocalCluster], object], sentence: str) -> None:
    with pytest.raises(KlammError) as raised:
        ask(LocalCluster(brokers=2, data_dir=tmp_path))
    assert str(raised.value) == sentence


@pytest.mark.parametrize("sasl", [None, "PLAIN"])
def test_an_empty_user_is_not_the_super_user(tmp_path: Path, sasl: str | None) -> None:
    with pytest.raises(ValueError, match="user cannot be ''"):
        LocalCluster(1, data_dir=tmp_path, sasl=sasl).client_config("")
