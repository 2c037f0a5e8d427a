"""When a client asks a silent server for a sign of life, and when it gives it up."""

from __future__ import annotations

import pytest

from klamm.zk.client.pings import CHECKS, Heartbeat


@pytest.mark.parametrize("first_check", range(CHECKS))
def test_a_silent_server_is_given_up_while_another_can_take_the_session(first_check: int) -> None:
    """Whenever the client looks, which it does every so often: a sixth of the timeout is left."""
    heartbeat, sent, asked = Heartbeat(60.0, 0.0), 0.0, []
    now = 60.0 / CHECKS * first_check / CHECKS
    while not heartbeat.is_lost(now):
        if heartbeat.is_due(now, sent):
            asked.append(now)
            sent = now
        now += 60.0 / CHECKS
    assert 40 <= now <= 50 and len(asked) == 1 and asked[0] <= 20


def test_a_process_that_could_not_run_asks_before_it_gives_up() -> None:
    heartbeat = Heartbeat(60.0, 0.0)
    assert not heartbeat.is_lost(500.0) and heartbeat.is_due(500.0, 0.0)
    assert not heartbeat.is_lost(510.0) and not heartbeat.is_due(510.0, 500.0)
    assert heartbeat.is_lost(516.0)
    heartbeat.receive(516.0)
    assert not heartbeat.is_lost(517.0) and not heartbeat.is_due(517.0, 516.0)


def test_one_ping_waits_behind_data_that_the_server_does_not_read() -> None:
    """The server sends but does not read: its messages do not cause another ping."""
    heartbeat, asked = Heartbeat(60.0, 0.0), 0
    for now in range(60):
        heartbeat.receive(float(now))
        asked += heartbeat.is_due(float(now), 0.0)
    assert asked == 3
