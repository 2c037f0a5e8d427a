"""Lines about denied operations are bounded per principal; the number of those that were left out is logged."""

from __future__ import annotations

import logging

import pytest

from klamm.security.acl.audit import ALL_LINES, LINES, LOGGER, TRACE, WINDOW_S, Denials
from klamm.security.acl.bindings import AclOperation, ResourceType

FIRST = (
    "Principal = User:alice is Denied Operation = Describe from host = 10.0.0.1 "
    "on resource = TransactionalId:LITERAL:0 for request = DescribeTransactions with resourceRefCount = 1"
)


@pytest.fixture(autouse=True)
def _at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)


def deny(denials: Denials, principal: str, count: int, now: float, *, is_probe: bool = False) -> None:
    asked = AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID
    for number in range(count):
        denials.log(principal, "10.0.0.1", *asked, str(number), "DescribeTransactions", now, is_probe=is_probe)


def test_one_principal_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    denials = Denials()
    deny(denials, "User:alice", LINES + 32, 1.0)
    assert caplog.messages[0] == FIRST
    assert len(caplog.messages) == LINES + 1
    limit = f"Principal = User:alice is Denied more operations than are logged in a minute: {LINES}"
    assert caplog.messages[-1] == limit
    caplog.clear()
    deny(denials, "User:bob", 1, 1.0 + WINDOW_S / 2)
    assert len(caplog.messages) == 1, "the denials of others are still logged"
    caplog.clear()
    deny(denials, "User:bob", 1, 1.0 + WINDOW_S)
    assert caplog.messages[0] == "Denied operations that were not logged: 32 of User:alice"
    assert len(caplog.messages) == 2
    caplog.clear()
    deny(denials, "User:alice", 1, 1.0 + 3 * WINDOW_S)
    assert caplog.messages == [FIRST], "nothing was left out in the window before"


def test_very_many_principals_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    denials = Denials()
    for number in range(3 * ALL_LINES):
        deny(denials, f"User:{number}", 1, 1.0)
    assert len(caplog.messages) == ALL_LINES
    caplog.clear()
    deny(denials, "User:alice", 1, 1.0 + WINDOW_S)
    line = caplog.messages[0]
    assert line.count(" of User:") <= 10 and line.endswith(" of others")
    counts = [
        int(part.split(" of ")[0]) for part in line.removeprefix("Denied operations that were not logged: ").split(", ")
    ]
    assert sum(counts) == 2 * ALL_LINES


def test_at_debug_every_denial_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, LOGGER)
    deny(Denials(), "User:alice", 3 * LINES, 1.0)
    assert len(caplog.messages) == 3 * LINES


def test_resources_that_are_left_out_of_lists_are_not_denials(caplog: pytest.LogCaptureFixture) -> None:
    denials = Denials()
    deny(denials, "User:alice", 3 * LINES, 1.0, is_probe=True)
    assert not caplog.messages
    deny(denials, "User:alice", 1, 1.0)
    assert caplog.messages == [FIRST], "they take nothing from the limit"
    caplog.set_level(TRACE, LOGGER)
    deny(denials, "User:alice", 1, 1.0, is_probe=True)
    assert caplog.messages == [FIRST] * 2
