"""Arguments of LocalCluster that cannot be: each is named before anything starts."""

from __future__ import annotations

import tempfile
from typing import Any

import pytest

from klamm.testing import LocalCluster


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        ({"brokers": 0}, "brokers cannot be 0: a cluster needs at least one."),
        ({"brokers": "3"}, "brokers cannot be '3': a cluster needs at least one."),
        ({"brokers": 3, "ports": [1, 2]}, "ports has 2 for 3 brokers: give one for each, or none at all."),
        ({"brokers": 1, "ports": [1, 2]}, "ports has 2 for 1 brokers: give one for each, or none at all."),
        ({"brokers": 2, "ports": [7, 7]}, "ports has 7 more than once."),
        ({"ports": [70_000]}, "ports has 70000: expected numbers from 0 to 65535."),
        (
            {"brokers": 2, "broker_configs": {3: {"broker.rack": "a"}}},
            "broker_configs has settings of broker 3, but the brokers are 1, 2.",
        ),
        ({"broker_configs": {1: "rack"}}, "broker_configs of broker 1 cannot be 'rack': expected keys with values."),
        ({"broker_configs": {"num.partition": 2}}, "broker_configs: num.partition is not a configuration key"),
        ({"broker_configs": {"num.partitions": "two"}}, "broker_configs: num.partitions"),
        (
            {"brokers": 2, "broker_configs": {2: {"broker.rak": "a"}}},
            "broker_configs of broker 2: broker.rak is not a configuration key",
        ),
        ({"defaults": {"no.such.key": 1}}, "defaults: no.such.key is not a configuration key"),
    ],
)
def test_an_argument_that_cannot_be(arguments: dict[str, Any], reported: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    monkeypatch.setattr(tempfile, "mkdtemp", lambda **_: made.append(1))
    with pytest.raises(ValueError) as raised:
        LocalCluster(**arguments)
    assert str(raised.value).startswith(reported)
    assert not made, "nothing is left behind"


def test_settings_of_one_broker_are_above_those_of_all() -> None:
    configs: dict[str | int, object] = {"num.partitions": 2, 2: {"num.partitions": 3}}
    cluster = LocalCluster(2, broker_configs=configs, data_dir="unused")
    assert [cluster._supervisor._settings.of_broker(each)["num.partitions"] for each in (1, 2)] == [2, 3]
    assert LocalCluster(2, ports=(0, 9), data_dir="unused")._supervisor._settings.ports == {1: 0, 2: 9}
