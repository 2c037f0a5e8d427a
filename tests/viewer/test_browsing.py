"""Pages of records: each record once, in both directions, across markers, gaps, large records and searches."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from klamm.cli.broker_requests import cli_client_config
from klamm.client import record_browser
from klamm.client.client_errors import ClientError, UnknownTopicError
from klamm.client.cluster_client import ClusterClient
from klamm.client.patience import Patience
from klamm.client.record_browser import BrowsedRecord, PageQuery, RecordPage, Start, browse
from klamm.client.record_producer import partition_of_key, produce
from klamm.protocol.record_batch import Record
from klamm.testing import LocalCluster
from tests.support.calm import WAIT_S

TOPIC = "browsed"
PARTITIONS = 3
BASE_MS = 1_700_000_000_000
KEPT = {"retention.ms": -1}
"""The records are years old. Retention would delete those of the first transaction: its marker has the present time
and begins a segment, which stays (`test_retention_takes_the_old_records_of_a_first_transaction`).
"""

Place = tuple[int, int]


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page shows what was found in seconds, and the reader asks again. These tests want it complete."""
    monkeypatch.setattr(record_browser, "RECORD_SEARCH", Patience(int(WAIT_S * 1000)))


@pytest.fixture(scope="module")
def client(cluster: LocalCluster) -> Iterator[ClusterClient]:
    with ClusterClient(cli_client_config(cluster.bootstrap_servers)) as opened:
        yield opened


@pytest.fixture(scope="module")
def written(cluster: LocalCluster) -> list[str]:
    """400 records in transactions, every third aborted: markers leave gaps. Returns the values."""
    cluster.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3, config=KEPT)
    rng = random.Random(4)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": "browsed"})
    producer.init_transactions(WAIT_S)
    values = []
    failures: list[object] = []

    def delivered(error: object, message: object) -> None:
        if error is not None:
            failures.append(error)

    for number in range(400):
        if number % 20 == 0:
            producer.begin_transaction()
        value = f"value {number} {'x' * rng.choice((5, 50, 500))}"
        at = rng.randrange(PARTITIONS)
        producer.produce(TOPIC, value, partition=at, timestamp=BASE_MS + number * 1000, on_delivery=delivered)
        values.append(value)
        if number % 20 == 19:
            assert producer.flush(WAIT_S) == 0 and not failures, failures
            end = producer.abort_transaction if number % 60 == 59 else producer.commit_transaction
            end(WAIT_S)
    return values


def texts(page: RecordPage) -> list[str]:
    return [bytes(each.record.value or b"").decode() for each in page.records]


def place(each: BrowsedRecord) -> Place:
    return each.partition, each.record.offset


def pages(client: ClusterClient, query: PageQuery) -> list[RecordPage]:
    """Follow the cursors until a page is empty and at its end."""
    found = [browse(client, query)]
    is_newest = query.start is Start.NEWEST
    while True:
        last = found[-1]
        cursor = last.older if is_newest else last.next
        bounds = last.bounds
        if all(at <= bounds[n].first if is_newest else at >= bounds[n].end for n, at in cursor.items()):
            return found
        start = Start.NEWEST if is_newest else Start.NEXT
        again = PageQuery(
            query.topic, start, partition=query.partition, limit=query.limit, search=query.search, cursor=cursor
        )
        found.append(browse(client, again))
        assert len(found) < 1_000


@pytest.mark.parametrize("start", [Start.EARLIEST, Start.NEWEST])
@pytest.mark.parametrize("partition", [None, 1])
def test_following_pages_shows_each_record_once(
    client: ClusterClient, written: list[str], start: Start, partition: int | None
) -> None:
    found = pages(client, PageQuery(TOPIC, start, partition=partition, limit=23))
    places = [place(each) for page in found for each in page.records]
    assert len(places) == len(set(places))
    values = [text for page in found for text in texts(page)]
    if partition is None:
        assert sorted(values) == sorted(written)
    assert values and all(page.is_complete and not page.problems for page in found)
    for page in found:
        times = [each.record.timestamp for each in page.records]
        assert times == sorted(times, reverse=start is Start.NEWEST)


def test_the_newest_come_first(client: ClusterClient, written: list[str]) -> None:
    assert texts(browse(client, PageQuery(TOPIC, limit=30))) == written[::-1][:30]


def test_a_time(client: ClusterClient, cluster: LocalCluster) -> None:
    cluster.create_topic("timed", partitions=2, replication_factor=3, config=KEPT)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for number in range(60):
        producer.produce("timed", str(number), partition=number % 2, timestamp=BASE_MS + number * 1000)
    producer.flush(WAIT_S)
    page = browse(client, PageQuery("timed", Start.TIME, BASE_MS + 45_000, limit=500))
    assert texts(page) == [str(number) for number in range(45, 60)]
    after = browse(client, PageQuery("timed", Start.TIME, BASE_MS + 10_000_000))
    assert not after.records and after.is_complete


def test_an_offset(client: ClusterClient, written: list[str]) -> None:
    page = browse(client, PageQuery(TOPIC, Start.OFFSET, 40, partition=2, limit=5))
    assert page.records[0].record.offset >= 40 and len(page.records) == 5
    assert not browse(client, PageQuery(TOPIC, Start.OFFSET, 10**9, partition=2)).records


@pytest.mark.parametrize("start", [Start.EARLIEST, Start.NEWEST])
def test_a_search_finds_all(client: ClusterClient, written: list[str], start: Start) -> None:
    found = pages(client, PageQuery(TOPIC, start, limit=10, search="VALUE 3"))
    values = [text for page in found for text in texts(page)]
    assert sorted(values) == sorted(text for text in written if text.startswith("value 3"))


@pytest.mark.parametrize("start", [Start.EARLIEST, Start.NEWEST])
def test_a_search_that_is_spent_continues_where_it_was(
    client: ClusterClient, written: list[str], start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_browser, "SEARCH_RECORDS", 60)
    found = pages(client, PageQuery(TOPIC, start, limit=10, search="value 39"))
    assert any(not page.is_complete for page in found)
    assert sorted(text for page in found for text in texts(page)) == sorted(
        t for t in written if t.startswith("value 39")
    )


def test_a_page_of_large_records_has_the_newest(
    client: ClusterClient, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes of a page are bounded; what it shows is still the end of the log, and one record at least."""
    cluster.create_topic("large", replication_factor=3)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0, "batch.num.messages": 1})
    for number in range(20):
        producer.produce("large", f"{number} " + "y" * 200_000)
    producer.flush(WAIT_S)
    monkeypatch.setattr(record_browser, "PAGE_BYTES", 1_000_000)
    found = pages(client, PageQuery("large", limit=50))
    assert len(found) > 2 and not found[0].is_complete
    assert [text.split()[0] for page in found for text in texts(page)] == [str(n) for n in range(19, -1, -1)]


def test_a_tail_skips_what_it_cannot_show(client: ClusterClient, written: list[str]) -> None:
    cursor = dict.fromkeys(range(PARTITIONS), 0)
    page = browse(client, PageQuery(TOPIC, Start.NEXT, limit=10, cursor=cursor, skips=True))
    ends = sum(bound.end for bound in page.bounds.values())
    assert page.skipped == ends - 10 * PARTITIONS


def test_names_that_do_not_exist(client: ClusterClient, written: list[str]) -> None:
    with pytest.raises(UnknownTopicError, match="There is no topic nothing"):
        browse(client, PageQuery("nothing"))
    with pytest.raises(ClientError, match="has no partition 7"):
        browse(client, PageQuery(TOPIC, partition=7))
    with pytest.raises(UnknownTopicError, match="has no partition 7"):
        produce(client, TOPIC, 7, Record(value=b"x"))


def test_a_produced_record_is_where_its_key_belongs(client: ClusterClient, cluster: LocalCluster) -> None:
    cluster.create_topic("made", partitions=5, replication_factor=3)
    now_ms = int(time.time() * 1000)
    record = Record(timestamp=now_ms, key=b"key", value=b"value", headers=[("h", None)])
    at, offset = produce(client, "made", None, record)
    assert (at, offset) == (partition_of_key(b"key", 5), 0)
    (found,) = browse(client, PageQuery("made", partition=at)).records
    assert (found.record.key, found.record.value, found.record.timestamp) == (b"key", b"value", now_ms)
    assert list(found.record.headers) == [("h", None)]
    produce(client, "made", None, Record(timestamp=now_ms))
    assert sum(bound.end for bound in browse(client, PageQuery("made")).bounds.values()) == 2
