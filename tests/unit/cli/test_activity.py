"""Rates from two readings of a broker's metrics."""

from __future__ import annotations

import pytest

from klamm.cli.activity import totals
from klamm.cli.broker_resources import BrokerResources, resources
from klamm.cli.cluster_metadata import compare
from klamm.cli.output import json_rows
from klamm.cli.request_activity import count, request_activities
from klamm.cli.top import bytes_text, fitting


def test_values_are_added_over_tags_but_not_over_topics() -> None:
    metrics = {
        "kafka_server_brokertopicmetrics_bytesin_total": 100.0,
        'kafka_server_brokertopicmetrics_bytesin_total{topic="a"}': 60.0,
        'kafka_network_requestmetrics_requests_total{request="Fetch",version="13"}': 5.0,
        'kafka_network_requestmetrics_requests_total{request="Produce",version="9"}': 2.0,
    }
    assert totals(metrics) == {
        "kafka_server_brokertopicmetrics_bytesin_total": 100.0,
        "kafka_network_requestmetrics_requests_total": 7.0,
    }


def test_resources_are_those_of_the_fullest_disk() -> None:
    found = resources(
        {
            "klamm_server_process_residentbytes": 5e7,
            'klamm_log_logmanager_disktotalbytes{logDirectory="/a"}': 1000.0,
            'klamm_log_logmanager_diskusablebytes{logDirectory="/a"}': 900.0,
            'klamm_log_logmanager_disktotalbytes{logDirectory="/b \\"c\\""}': 500.0,
            'klamm_log_logmanager_diskusablebytes{logDirectory="/b \\"c\\""}': 50.0,
            'klamm_log_logmanager_disktotalbytes{logDirectory="/gone"}': -1.0,
            'klamm_log_logmanager_diskusablebytes{logDirectory="/gone"}': -1.0,
            'klamm_server_eventloop_idlepercent{loop="broker"}': 0.75,
            'klamm_server_eventloop_idlepercent{loop="control"}': 0.5,
        }
    )
    assert (found.memory_bytes, found.disk_total, found.disk_usable) == (50_000_000, 500, 50)
    assert found.loop_idle == {"broker": 0.75, "control": 0.5} and found.loop_lag_max_ms == {}
    assert resources({}) == BrokerResources()


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, None), (0.0, "0 B"), (999.4, "999 B"), (12_500.0, "12.5 kB"), (3.2e6, "3.2 MB"), (5e9, "5.0 GB")],
)
def test_bytes_have_a_unit(value: float | None, text: str | None) -> None:
    assert bytes_text(value) == text


def test_partitions_that_one_side_does_not_know_differ() -> None:
    mine = {("a", 0): (1, 0, frozenset({1, 2})), ("gone", 0): (1, 0, frozenset({1}))}
    controllers = {("a", 0): (1, 0, frozenset({2, 1})), ("new", 0): (2, 0, frozenset({2}))}
    found = {(it.topic, it.differs) for it in compare(mine, controllers)}
    assert found == {("a", False), ("gone", True), ("new", True)}


def test_columns_become_the_keys_of_json() -> None:
    columns = ("GROUP", "CONSUMER-ID", "COORDINATOR (ID)", "#MEMBERS", "TopicId", "ReadOnly")
    assert json_rows(columns, [("g", "c", "x", 3, "t", None)]) == [
        {"group": "g", "consumer_id": "c", "coordinator_id": "x", "members": 3, "topic_id": "t", "read_only": None}
    ]


def test_requests_are_compared_by_api() -> None:
    name = "kafka_network_requestmetrics_"

    def reading(fetches: int, failed: int) -> dict[str, float]:
        return {
            f'{name}requests_total{{request="Fetch",version="13"}}': float(fetches),
            f'{name}requests_total{{request="Fetch",version="12"}}': 10.0,
            f'{name}errors_total{{request="Fetch",error="NONE"}}': 99.0,
            f'{name}errors_total{{request="Fetch",error="NOT_LEADER_OR_FOLLOWER"}}': float(failed),
            f'{name}totaltimems{{request="Fetch",quantile="0.99"}}': 12.5,
            f'{name}remotetimems{{request="Fetch",quantile="0.99"}}': 11.0,
            f'{name}remotetimems{{request="Fetch",quantile="0.50"}}': 400.0,
        }

    before = {1: count(reading(100, 0)), 2: count(reading(500, 4))}
    (fetch,) = request_activities({1: count(reading(120, 4)), 2: count(reading(30, 4))}, before, 2.0)
    assert fetch.api == "Fetch" and fetch.error_rate == 2.0
    assert fetch.rate == (20 + 40) / 2, "broker 2 was restarted: its counters began again"
    assert (fetch.total_ms, fetch.phases_ms["remote"], fetch.phases_ms["local"]) == (12.5, 11.0, 0.0)
    (first,) = request_activities({1: count(reading(100, 0))}, {}, 2.0)
    assert first.rate is None


def test_a_narrow_terminal_has_several_tables() -> None:
    columns = ("BROKER", "IN", "MEMORY")
    rows: list[list[object]] = [[1, "12.5 kB", "55.9 MB"], [2, None, None]]
    assert fitting(columns, rows, None) == [[0, 1, 2]]
    assert fitting(columns, rows, 24) == [[0, 1, 2]], "6 + 2 + 7 + 2 + 7 characters"
    assert fitting(columns, rows, 23) == [[0, 1], [0, 2]]
    assert fitting(columns, rows, 1) == [[0, 1], [0, 2]], "a table has at least one figure"
    assert fitting(columns, [], 80) == [[0, 1, 2]]
