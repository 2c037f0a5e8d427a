"""Accounts of clients: bounded in number, closed when idle, visible in the metrics."""

from __future__ import annotations

import math

from klamm.config.client_quotas import CONSUMER_BYTE_RATE, DEFAULT, ClientQuotas, QuotaEntity
from klamm.metrics import MetricsRegistry
from klamm.quota.accounts import IDLE_MS, MAX_ACCOUNTS, Account, Accounts
from klamm.quota.client_quota_manager import UNLIMITED, ClientQuotaManager
from klamm.quota.controller_mutation_quota import ControllerMutationQuotaManager
from klamm.quota.windowed_rate import Windows
from tests.support.one_broker import ManualClock

C = QuotaEntity(client_id="c")


def registry() -> MetricsRegistry:
    return MetricsRegistry(ManualClock())


def test_hostile_client_ids_take_a_bounded_amount_of_memory() -> None:
    accounts = Accounts[Account]("Produce", registry(), lambda: 0)
    first = accounts.find(C, 0, Account)
    for number in range(3 * MAX_ACCOUNTS):
        accounts.find(QuotaEntity(client_id=f"hostile-{number}"), number, Account)
        if number % 1000 == 0:
            assert accounts.find(C, number, Account) is first, "a client that is in use keeps its account"
    assert len(accounts) == MAX_ACCOUNTS


def test_an_account_expires_an_hour_after_its_last_use() -> None:
    accounts = Accounts[Account]("Produce", registry(), lambda: 0)
    accounts.find(C, 0, Account)
    accounts.find(QuotaEntity("u"), 1000, Account)
    accounts.find(C, 2000, Account)
    accounts.expire(IDLE_MS + 999)
    assert len(accounts) == 2
    accounts.expire(IDLE_MS + 1000)
    assert len(accounts) == 1
    accounts.expire(IDLE_MS + 2000)
    assert not len(accounts)


def test_metrics_have_kafkas_names_and_labels() -> None:
    metrics = registry()
    accounts = Accounts[Account]("Fetch", metrics, lambda: 500)
    account = accounts.find(QuotaEntity("a b", 'c"'), 0, Account)
    assert math.isnan(account.average_throttle_time_ms(0))
    accounts.note_throttle(account, 200, 0)
    accounts.note_throttle(account, 600, 0)
    text = metrics.exposition()
    assert 'kafka_server_fetch_throttle_time{user="a%20b",client_id="c\\""} 400.0\n' in text
    assert "kafka_server_fetch_queue_size 1\n" in text, "the first throttle time is over"


def manager(limit: int) -> ClientQuotaManager:
    quotas = ClientQuotas()
    quotas.set_entity(QuotaEntity(client_id=DEFAULT), {CONSUMER_BYTE_RATE: str(limit)})
    return ClientQuotaManager("Fetch", quotas.limits[CONSUMER_BYTE_RATE], Windows(), registry(), lambda: 0)


def test_a_withheld_response_is_not_counted() -> None:
    fetch = manager(100)
    assert fetch.max_in_windows("u", "c") == 1000
    assert fetch.record_if_within("u", "c", 1000, 0) == (fetch.record("u", "c", 0, 0), False)
    for now_ms in (1, 2):
        verdict, is_withheld = fetch.record_if_within("u", "c", 500, now_ms)
        assert is_withheld and verdict.throttle_time_ms == 5000 - now_ms
    assert fetch.record("u", "c", 0, 5000).throttle_time_ms == 0


def test_a_response_that_never_fits_is_sent_when_nothing_else_was() -> None:
    """In Kafka such a consumer makes no progress: every Fetch of the batch exceeds the quota by itself."""
    fetch = manager(10)
    verdict, is_withheld = fetch.record_if_within("u", "c", 5000, 0)
    assert not is_withheld and verdict.throttle_time_ms == 490_000
    assert fetch.record_if_within("u", "c", 5000, 1000)[1]
    assert not fetch.record_if_within("u", "c", 5000, 11_000)[1], "all windows are over"


def test_clients_with_different_ids_do_not_share_a_default() -> None:
    fetch = manager(100)
    assert fetch.record("u", "a", 5000, 0).throttle_time_ms > 0
    assert fetch.record("u", "b", 900, 0).throttle_time_ms == 0
    assert fetch.record("v", "a", 1, 0).throttle_time_ms > 0, "users share a client id's quota"


def test_without_a_quota_nothing_is_limited() -> None:
    fetch = ClientQuotaManager("Fetch", ClientQuotas().limits[CONSUMER_BYTE_RATE], Windows(), registry(), lambda: 0)
    assert fetch.max_in_windows("u", "c") == UNLIMITED
    assert fetch.record("u", "c", 10**12, 0).throttle_time_ms == 0 and not len(fetch.accounts)


class TestMutations:
    def quota(self, *, is_strict: bool) -> tuple[ControllerMutationQuotaManager, ManualClock]:
        quotas, clock = ClientQuotas(), ManualClock()
        quotas.set_entity(QuotaEntity(DEFAULT), {"controller_mutation_rate": "1.0"})
        limits = quotas.limits["controller_mutation_rate"]
        return ControllerMutationQuotaManager(limits, Windows(10, 1000), registry(), lambda: clock.elapsed_ms), clock

    def test_strict(self) -> None:
        manager, clock = self.quota(is_strict=True)
        quota = manager.quota_for("u", "c", is_strict=True)
        assert quota.record(15), "a change may use more than is left"
        assert quota.throttle_time_ms() == 0, "nothing was refused"
        assert not manager.quota_for("u", "other", is_strict=True).record(1), "a user's clients share the quota"
        assert not quota.record(1) and quota.throttle_time_ms() == 5000
        clock.elapsed_ms = 2000
        assert quota.throttle_time_ms() == 3000
        clock.elapsed_ms = 5000
        assert quota.record(1)
        assert manager.quota_for("another", "c", is_strict=True).record(1)

    def test_permissive(self) -> None:
        manager, _ = self.quota(is_strict=False)
        quota = manager.quota_for("u", "c", is_strict=False)
        assert quota.record(9) and quota.throttle_time_ms() == 0
        assert quota.record(2) and quota.throttle_time_ms() == 1000
        assert quota.record(2) and quota.throttle_time_ms() == 3000
        quota.give_back(3)
        assert quota.throttle_time_ms() == 0
