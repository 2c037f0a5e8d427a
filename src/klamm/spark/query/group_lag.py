"""A streaming query as a consumer group: its offsets are committed after every batch, so Kafka's tools show its lag.

The group is only a label: no member joins it, Spark's checkpoint alone decides where the query continues, and a failed
commit is logged and retried with the next batch. Reading with the option `commitGroup` does the same without a
listener.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from klamm.client.patience import PROGRESS_COMMIT
from klamm.errors import KlammError
from klamm.model import TopicPartition
from klamm.spark.query.progress import Progress, ProgressListener
from klamm.spark.source.client_options import task_client

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger(__name__)
Commit = Callable[[str, Mapping[TopicPartition, int]], None]


class GroupOffsets:
    """A progress sink that commits the end offsets of each batch."""

    def __init__(self, group: str, commit: Commit) -> None:
        self._group = group
        self._commit = commit
        self._committed: Mapping[TopicPartition, int] = {}

    def progress(self, progress: Progress) -> None:
        if not progress.ended_at or progress.ended_at == self._committed:
            return
        try:
            self._commit(self._group, progress.ended_at)
            self._committed = progress.ended_at
        except (KlammError, OSError) as error:
            _log.warning("committing the offsets of group %s failed: %s", self._group, error)

    def ended(self, query_id: str, reason: str | None) -> None:
        pass

    def close(self) -> None:
        pass


def commit_group_offsets(
    query: StreamingQuery, group: str, *, bootstrap_servers: str, client_options: Mapping[str, str] | None = None
) -> ProgressListener:
    """Commit the offsets of `query` to `group` after each of its batches from now on.

    Returns the listener; `spark.streams.removeListener` ends it.
    """
    if not group:
        raise KlammError("The name of a consumer group cannot be empty.")

    def commit(group: str, offsets: Mapping[TopicPartition, int]) -> None:
        # One connection per batch: it is cheap compared to a batch, and nothing has to be closed later.
        with task_client(bootstrap_servers, client_options) as client, client.within(PROGRESS_COMMIT):
            client.commit_offsets(group, offsets)

    sink = GroupOffsets(group, commit)
    listener = ProgressListener([sink], str(query.id))
    _session().streams.addListener(listener)
    return listener


def _session() -> SparkSession:
    from pyspark.sql import SparkSession

    active: Any = SparkSession.active()
    found: SparkSession = active
    return found
