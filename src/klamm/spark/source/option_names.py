"""Names of the options of `format("klamm")`, and warnings about unknown names.

Spark passes all options on, and its Kafka connector ignores unknown ones, so a misspelled name would have no effect
silently. `kafka.*` options belong to Kafka's clients, which check them.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

T = TypeVar("T")

READ: Final = (
    "assign",
    "batchBytes",
    "columns",
    "commitGroup",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "failOnDataLoss",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "groupIdPrefix",
    "includeHeaders",
    "kafkaConsumer.pollTimeoutMs",
    "logDirs",
    "maxOffsetsPerTrigger",
    "maxRecordsPerPartition",
    "maxTriggerDelay",
    "maxUnpackedBytes",
    "minOffsetsPerTrigger",
    "minPartitions",
    "partition.metadata.cache.ttl.ms",
    "pollMs",
    "pushdown",
    "readMode",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "startingTimestamp",
    "subscribe",
    "subscribePattern",
    "valueFormat",
    "valueMessage",
    "valueSchema",
    "valueSchemaFile",
)
WRITE: Final = ("checkpointLocation", "guarantee", "includeHeaders", "topic", "transactionalIdPrefix")
TABLE: Final = ("appendToExisting", "badRecords", "checkpointLocation", "compactEvery", "partitionByDate", "path")
_OF_SPARK: Final = ("path",)
_OF_KLAMM: Final = ("klamm.batch",)
_KAFKA: Final = "kafka."
_ISOLATION: Final = "kafka.isolation.level"

_log = logging.getLogger("klamm.spark")
_warned: set[str] = set()


def with_committed_reads(options: Mapping[str, T]) -> dict[str, T | str]:
    """Return the options with read_committed unless they name a level.

    This is the default of pipelines, SQL tables and `klamm table sync`. `format("klamm")` itself has the connector's
    default, read_uncommitted.
    """
    is_given = any(name.lower() == _ISOLATION for name in options)
    return {**options} if is_given else {_ISOLATION: "read_committed", **options}


def unknown(options: Iterable[str], known: Iterable[str]) -> list[str]:
    """Return the `options` that are not in `known` (ignoring case) and not for Kafka's clients."""
    names = {name.lower() for name in known}
    return [name for name in options if name.lower() not in names and not name.lower().startswith(_KAFKA)]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` Did you mean 'maxOffsetsPerTrigger'?`, or nothing."""
    by_lower = {other.lower(): other for other in known}
    close = difflib.get_close_matches(name.lower(), list(by_lower), n=1, cutoff=0.75)
    return f" Did you mean {by_lower[close[0]]!r}?" if close else ""


def warn_of_unknown(options: Mapping[str, str]) -> None:
    """Warns once per name and process. An option of the other direction is not an error: programs share options."""
    known = {*READ, *WRITE, *_OF_SPARK, *_OF_KLAMM}
    for name in unknown(options, known):
        if name.lower() not in _warned:
            _warned.add(name.lower())
            _log.warning('format("klamm") ignores the unknown option %r.%s', name, did_you_mean(name, known))
