"""Traces of requests: one record per traced request, with its phases, its waits and what ended them."""

from __future__ import annotations

from klamm.request_log.trace_encoding import to_json
from klamm.request_log.trace_records import RequestRecord, Wait

__all__ = ["RequestRecord", "Wait", "to_json"]
