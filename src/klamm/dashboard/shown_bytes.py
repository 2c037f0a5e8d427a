"""Record contents for the page: text if it is UTF-8, otherwise hexadecimal, cut to a bound and named as such."""

from __future__ import annotations

from typing import Any, Final

from klamm.client.record_browser import BrowsedRecord, RecordPage

LISTED_BYTES: Final = 2_000
"""Of each part of a record in a list."""
WHOLE_BYTES: Final = 256 * 1024
"""Of each part of a record that is shown alone."""
MAX_HEADERS: Final = 50


def shown(data: bytes | memoryview | None, limit: int) -> dict[str, Any] | None:
    """Return the form for JSON; None for null."""
    if data is None:
        return None
    size = len(data)
    part = bytes(data[:limit])
    try:
        # A cut may be inside a character: at most three bytes of it are left.
        text, encoding = _decoded(part, is_cut=size > limit), "text"
    except UnicodeDecodeError:
        text, encoding = part[: limit // 2].hex(), "hex"
    return {
        "text": text,
        "encoding": encoding,
        "size": size,
        "is_cut": size > limit or (encoding == "hex" and size > limit // 2),
    }


def _decoded(part: bytes, *, is_cut: bool) -> str:
    try:
        return part.decode()
    except UnicodeDecodeError as error:
        if is_cut and error.start > len(part) - 4 and error.reason == "unexpected end of data":
            return part[: error.start].decode()
        raise


def shown_record(found: BrowsedRecord, limit: int) -> dict[str, Any]:
    record = found.record
    return {
        "partition": found.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": shown(record.key, limit),
        "value": shown(record.value, limit),
        "headers": [[name[:limit], shown(value, limit)] for name, value in record.headers[:MAX_HEADERS]],
        "header_count": len(record.headers),
        "is_transactional": found.is_transactional,
        "producer_id": found.producer_id if found.producer_id >= 0 else None,
    }


def shown_page(page: RecordPage, limit: int = LISTED_BYTES) -> dict[str, Any]:
    return {
        "records": [shown_record(each, limit) for each in page.records],
        "next": page.next,
        "older": page.older,
        "bounds": {number: list(bound) for number, bound in page.bounds.items()},
        "scanned": page.scanned,
        "is_complete": page.is_complete,
        "skipped": page.skipped,
        "problems": list(page.problems),
    }
