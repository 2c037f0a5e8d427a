"""Lines about failed logins are bounded per address; those that were left out are counted."""

from __future__ import annotations

from klamm.security.failure_log import ALL_LINES, LINES, MAX_ADDRESSES, SAME_LINES, WINDOW_S, FailureLog


def test_equal_failures_are_logged_a_few_times() -> None:
    log = FailureLog()
    found = [log.note("10.0.0.7", "wrong password", 1.0) for _ in range(SAME_LINES + 5)]
    assert found[: SAME_LINES - 1] == [""] * (SAME_LINES - 1)
    assert found[SAME_LINES - 1] == "; equal failures of this address are not logged for a minute"
    assert found[SAME_LINES:] == [None] * 5
    assert log.note("10.0.0.7", "no certificate", 1.0) == "", "another reason is news"
    assert log.note("10.0.0.8", "wrong password", 1.0) == ""
    assert log.note("10.0.0.7", "wrong password", 1.0 + WINDOW_S) == "; 5 more failures of this address were not logged"
    assert log.note("10.0.0.7", "wrong password", 1.0 + WINDOW_S) == ""


def test_a_peer_that_varies_its_failures_is_limited_too() -> None:
    log = FailureLog()
    written = [log.note("10.0.0.7", f"mechanism {number}", 1.0) for number in range(10 * LINES)]
    assert sum(line is not None for line in written) == LINES


def test_the_memory_is_bounded() -> None:
    log = FailureLog()
    for number in range(3 * MAX_ADDRESSES):
        assert log.note(f"address {number}", "x", 1.0) == ""
    assert len(log._windows) <= MAX_ADDRESSES


def test_very_many_addresses_do_not_fill_the_log() -> None:
    log = FailureLog()
    addresses = [f"2001:db8::{number:x}" for number in range(3 * ALL_LINES)]
    written = [log.note(address, "no TLS", 100.0) for address in addresses]
    assert sum(line is not None for line in written) == ALL_LINES
    assert log.note("10.0.0.1", "no TLS", 100.0 + WINDOW_S) == ""
