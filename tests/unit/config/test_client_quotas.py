"""Which quota applies to a client, and how quotas are written and read."""

from __future__ import annotations

import logging
import math

import pytest

from klamm.config.client_quotas import (
    DEFAULT,
    PRODUCER_BYTE_RATE,
    ClientQuotas,
    QuotaEntity,
    QuotaLimits,
    format_quota,
    quota_problem,
    usable_quotas,
)

ORDER = (
    (QuotaEntity("u", "c"), QuotaEntity("u", "c")),
    (QuotaEntity("u", DEFAULT), QuotaEntity("u", "c")),
    (QuotaEntity("u", None), QuotaEntity("u", None)),
    (QuotaEntity(DEFAULT, "c"), QuotaEntity("u", "c")),
    (QuotaEntity(DEFAULT, DEFAULT), QuotaEntity("u", "c")),
    (QuotaEntity(DEFAULT, None), QuotaEntity("u", None)),
    (QuotaEntity(None, "c"), QuotaEntity(None, "c")),
    (QuotaEntity(None, DEFAULT), QuotaEntity(None, "c")),
)
"""Kafka's order of precedence, and the account that the client `c` of the user `u` then shares."""


@pytest.mark.parametrize("first", range(len(ORDER)))
def test_the_most_specific_quota_applies(first: int) -> None:
    limits = QuotaLimits()
    for number, (entity, _) in enumerate(ORDER[first:], first):
        limits.set(entity, number)
    assert limits.match("u", "c") == (ORDER[first][1], first)
    assert limits.source("u", "c") == ORDER[first][0]


@pytest.mark.parametrize(
    "entity", [("other", "c"), ("u", "other"), ("other", None), (None, "other"), (DEFAULT, "other")]
)
def test_quotas_of_others_do_not_apply(entity: tuple[str | None, str | None]) -> None:
    limits = QuotaLimits()
    limits.set(QuotaEntity(*entity), 1)
    assert limits.match("u", "c") is None


def test_a_client_without_an_id_has_the_default() -> None:
    limits = QuotaLimits()
    limits.set(QuotaEntity(None, DEFAULT), 1)
    assert limits.match("u", "") == (QuotaEntity(None, ""), 1)


def test_changes_reach_the_limits_and_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "klamm.config")
    quotas, received = ClientQuotas(), []
    quotas.on_change(lambda: received.append(dict(quotas.entities)))
    alice = QuotaEntity("alice", DEFAULT)
    quotas.set_entity(alice, {PRODUCER_BYTE_RATE: "10", "SCRAM-SHA-256": "secret"})
    quotas.set_entity(alice, {PRODUCER_BYTE_RATE: "10"})
    assert quotas.limits[PRODUCER_BYTE_RATE].match("alice", "x") == (QuotaEntity("alice", "x"), 10)
    quotas.replace_all({QuotaEntity(None, "c"): {"request_percentage": "50.0"}})
    assert not quotas.limits[PRODUCER_BYTE_RATE]
    quotas.set_entity(QuotaEntity(None, "c"), {})
    assert len(received) == 3 and received[-1] == {}
    assert [record.getMessage() for record in caplog.records] == [
        "Quota of user alice, client id <default>: producer_byte_rate is now 10",
        "Quota of client id c: request_percentage is no longer set",
    ]


def test_unusable_values_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    found = usable_quotas(
        "client id c", {"producer_byte_rate": "1.5", "consumer_byte_rate": "7", "request_percentage": "nan"}
    )
    assert found == {"consumer_byte_rate": 7}
    assert len(caplog.records) == 2


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("producer_byte_rate", 1024.0, "1024"),
        ("consumer_byte_rate", 1e12, "1000000000000"),
        ("producer_byte_rate", 0.9999999, "1"),
        ("producer_byte_rate", 2.0**63 - 1, "9223372036854775807"),
        ("request_percentage", 50.0, "50.0"),
        ("request_percentage", 0.5, "0.5"),
        ("request_percentage", 0.001, "0.001"),
        ("request_percentage", 0.0001, "1.0E-4"),
        ("request_percentage", 12345678.9, "1.23456789E7"),
        ("controller_mutation_rate", 1e7, "1.0E7"),
        ("controller_mutation_rate", 9999999.0, "9999999.0"),
        ("controller_mutation_rate", 1e21, "1.0E21"),
        ("controller_mutation_rate", 123.456, "123.456"),
    ],
)
def test_values_are_written_as_java_writes_them(key: str, value: float, text: str) -> None:
    assert format_quota(key, value) == text


@pytest.mark.parametrize(
    ("key", "value", "is_good"),
    [
        ("producer_byte_rate", 1, True),
        ("producer_byte_rate", 1.5, False),
        ("producer_byte_rate", 0, False),
        ("producer_byte_rate", 1e19, False),
        ("consumer_byte_rate", -1, False),
        ("request_percentage", 1.5, True),
        ("request_percentage", math.nan, False),
        ("controller_mutation_rate", math.inf, False),
        ("connection_creation_rate", 1, False),
    ],
)
def test_values_that_cannot_be_quotas(key: str, value: float, is_good: bool) -> None:
    assert (quota_problem(key, value) is None) == is_good
