"""ConnectionQuotas: pure decisions and counts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from klamm.network.connection_quotas import BROKER_RESERVE, Admission, ConnectionLimits, ConnectionQuotas


def test_the_order_of_the_limits() -> None:
    limits = ConnectionLimits(
        max_connections=3,
        max_connections_per_ip=2,
        max_connections_per_ip_overrides={"10.0.0.9": 3},
        listener_max_connections={"OUT": 1},
    )
    quotas = ConnectionQuotas(limits, protected_listeners=("IN",))
    assert quotas.acquire("OUT", "10.0.0.1") is Admission.ADMIT
    assert quotas.acquire("OUT", "10.0.0.2") is Admission.WAIT
    assert quotas.acquire("IN", "10.0.0.1") is Admission.ADMIT
    assert quotas.acquire("OTHER", "10.0.0.1") is Admission.REFUSE
    assert quotas.acquire("OTHER", "10.0.0.2") is Admission.ADMIT
    assert quotas.acquire("OTHER", "10.0.0.2") is Admission.WAIT
    assert quotas.acquire("IN", "10.0.0.9") is Admission.ADMIT_AND_EVICT
    assert quotas.total == 4
    quotas.release("OTHER", "10.0.0.2")
    quotas.release("IN", "10.0.0.9")
    assert quotas.acquire("OTHER", "10.0.0.9") is Admission.ADMIT
    assert quotas._by_ip == {"10.0.0.1": 2, "10.0.0.9": 1}


@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from(["A", "B"]), st.sampled_from(["1.1.1.1", "2.2.2.2"]))),
    st.integers(0, 4),
    st.integers(0, 4),
    st.integers(0, 4),
)
def test_no_limit_is_ever_exceeded(
    steps: list[tuple[bool, str, str]], total: int, per_ip: int, per_listener: int
) -> None:
    limits = ConnectionLimits(total, per_ip, {}, {"A": per_listener})
    quotas = ConnectionQuotas(limits)
    held: list[tuple[str, str]] = []
    for is_open, listener, ip in steps:
        if is_open:
            admission = quotas.acquire(listener, ip)
            assert admission is not Admission.ADMIT_AND_EVICT
            if admission is Admission.ADMIT:
                held.append((listener, ip))
        elif (listener, ip) in held:
            held.remove((listener, ip))
            quotas.release(listener, ip)
        assert quotas.total == len(held) <= total or not held
        assert all(quotas._by_ip.get(i, 0) == sum(h[1] == i for h in held) <= per_ip for i in ("1.1.1.1", "2.2.2.2"))
        assert sum(h[0] == "A" for h in held) <= per_listener


def test_brokers_have_a_reserve_on_a_shared_listener() -> None:
    limits = ConnectionLimits(max_connections=1, max_connections_per_ip=1)
    quotas = ConnectionQuotas(limits, is_broker_address=lambda ip: ip == "10.0.0.1")
    assert quotas.acquire("L", "10.0.0.9") is Admission.ADMIT
    assert quotas.acquire("L", "10.0.0.8") is Admission.WAIT
    assert [quotas.acquire("L", "10.0.0.1") for _ in range(BROKER_RESERVE)] == [Admission.ADMIT] * BROKER_RESERVE
    assert quotas.acquire("L", "10.0.0.1") is Admission.WAIT


def test_brokers_have_a_reserve_above_the_limit_of_a_listener() -> None:
    limits = ConnectionLimits(listener_max_connections={"L": 1})
    quotas = ConnectionQuotas(limits, is_broker_address=lambda ip: ip == "10.0.0.1")
    assert quotas.acquire("L", "10.0.0.9") is Admission.ADMIT
    assert quotas.acquire("L", "10.0.0.9") is Admission.WAIT
    assert [quotas.acquire("L", "10.0.0.1") for _ in range(BROKER_RESERVE)] == [Admission.ADMIT] * BROKER_RESERVE
    assert quotas.acquire("L", "10.0.0.1") is Admission.WAIT


def test_limits_per_address_do_not_hold_for_the_listeners_of_brokers() -> None:
    quotas = ConnectionQuotas(ConnectionLimits(max_connections_per_ip=1), protected_listeners={"IN"})
    assert [quotas.acquire("IN", "10.0.0.1") for _ in range(3)] == [Admission.ADMIT] * 3
    assert quotas.acquire("OUT", "10.0.0.1") is Admission.REFUSE
