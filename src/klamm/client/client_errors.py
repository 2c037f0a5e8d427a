"""Errors of the cluster client: those that pass with time, and those that reach the caller."""

from __future__ import annotations

from klamm.errors import ErrorCode, KlammError
from klamm.model import TopicPartition


class ClientError(KlammError):
    """The cluster rejected the request or did not answer before the deadline."""


class UnreachableError(ClientError):
    """No broker has ever been reached, so further attempts are not worth the wait."""


class AuthenticationError(ClientError):
    """The broker refuses the credentials, or its certificate is not trusted. Repeating the attempt does not help."""


class UnknownTopicError(ClientError):
    """The topic or partition does not exist, or no longer exists."""


class OffsetOutOfRangeError(ClientError):
    """The leader has no record at the offset: it is before the start or after the end of the log."""


class ProducerFencedError(ClientError):
    """The epoch is no longer the producer's: its transaction timed out, or another producer has the id now."""


class TransactionTimeoutError(ClientError):
    """The broker does not accept a transaction timeout that is this long."""


class ProduceError(ClientError):
    """A partition rejected a record batch for good."""

    def __init__(self, tp: TopicPartition, code: int, detail: str | None = None) -> None:
        super().__init__(f"{tp} rejected a batch: {error_name(code)}{f' ({detail})' if detail else ''}.")
        self.tp = tp
        self.code = code


class RetriableError(Exception):
    """A temporary failure: refresh the metadata and retry."""


class TopicIdError(RetriableError):
    """The broker has no topic with the requested id: it has not learned it yet, or the name was reused."""


class AllRefusedError(ConnectionError):
    """Every address refused the connection or has an unknown host name. Unlike silence, this is known at once."""


def error_code(code: int) -> ErrorCode | None:
    """Return the error code, None for a number that klamm does not know."""
    try:
        return ErrorCode(code)
    except ValueError:
        return None


def error_name(code: int) -> str:
    known = error_code(code)
    return known.name if known is not None else f"error {code}"


def is_retriable(code: int) -> bool:
    known = error_code(code)
    return known is not None and known.is_retriable
