"""Errors of undelivered records: the reason, the remedy, and whether a retry could help."""

from __future__ import annotations

from typing import Any, Final

from klamm.errors import KlammError

_TOO_LARGE: Final = frozenset({"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"})
_STAYS: Final = _TOO_LARGE | {"INVALID_RECORD", "TOPIC_AUTHORIZATION_FAILED", "TOPIC_EXCEPTION"}
"""librdkafka's names; TOPIC_EXCEPTION means an invalid topic name."""
_UNKNOWN_PARTITION: Final = "UNKNOWN_PARTITION"


class DeliveryError(KlammError):
    """A record was not delivered; a retry may succeed."""


class PermanentWriteError(DeliveryError):
    """The rows themselves are wrong: no retry; the driver reports it."""


def is_unknown_partition(error: Any) -> bool:
    return _name(error) == _UNKNOWN_PARTITION


def delivery_error(topic: str | None, partition: int | None, error: Any, partitions: int | None) -> DeliveryError:
    """Return the exception for an error of librdkafka. `partitions` is the topic's partition count, if known."""
    where = topic if partition is None or partition < 0 else f"{topic}-{partition}"
    name = _name(error)
    reason = f"{name}: {error.str()}" if name else str(error)
    message = f"A record for {where} was not delivered: {reason}"
    if name in _TOO_LARGE:
        message += ". Raise kafka.max.request.size of the write, max.message.bytes of the topic, or both"
    if name == _UNKNOWN_PARTITION and partitions is not None and partition is not None and partition >= partitions:
        return PermanentWriteError(f"{message}. The topic has {partitions} partitions, counted from 0.")
    return PermanentWriteError(f"{message}.") if name in _STAYS else DeliveryError(f"{message}.")


def _name(error: Any) -> str:
    return str(error.name()).lstrip("_") if hasattr(error, "name") else ""
