"""A trace as JSON, as docs/reference/request-log.md shows it."""

from __future__ import annotations

import json
import re

from klamm.request_log import RequestRecord, Wait, to_json
from klamm.request_log.trace_encoding import key_of
from klamm.request_log.trace_records import Cause, Named
from tests.support.source_tree import ROOT

RECORD = RequestRecord(
    sequence=7,
    at_ms=1794780483585,
    api="Produce",
    api_version=10,
    correlation_id=12,
    client_id="checkout",
    principal="User:ANONYMOUS",
    connection_id="127.0.0.1:9092-127.0.0.1:51312-7",
    listener="PLAINTEXT",
    plane="data",
    processor=0,
    queue_size=0,
    control_queue_size=0,
    request_bytes=214,
    response_bytes=66,
    partition_count=1,
    partitions=(Named("orders", 0),),
    error="NONE",
    errors=(),
    outcome="answered",
    total_ms=6.91234,
    request_queue_ms=0.051,
    local_ms=0.204,
    remote_ms=6.51,
    response_order_ms=0.0,
    response_queue_ms=0.088,
    send_ms=0.059,
    throttle_ms=0.0,
    waits=(
        Wait(
            "Produce",
            0.2431,
            6.498,
            "completed",
            "orders-0",
            Cause("Fetch", "broker-3-fetcher", "127.0.0.1:9092-127.0.0.1:51290-4", 331, 3),
        ),
    ),
)


def test_the_page_shows_a_record_as_it_is_written() -> None:
    page = (ROOT / "docs" / "reference" / "request-log.md").read_text()
    (shown,) = re.findall(r"^```json\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    written = json.loads(to_json(RECORD, 1))
    assert json.loads(shown) == written
    assert list(json.loads(shown)) == list(written), "in the same order"
    assert key_of(RECORD) == b"Produce"


def test_the_page_names_every_field_and_key() -> None:
    page = (ROOT / "docs" / "reference" / "request-log.md").read_text()
    for name in json.loads(to_json(RECORD, 1)):
        assert f"`{name}`" in page, name
