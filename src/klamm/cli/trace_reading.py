"""The traces of all brokers for the viewer: from their memory, or from the topic if a broker does not serve them."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from klamm.cli.broker_metrics import read_page
from klamm.cli.cluster import first_metadata
from klamm.cli.cluster_control import Address
from klamm.client.client_errors import ClientError
from klamm.client.cluster_client import ClusterClient
from klamm.client.connection_pool import ClientConfig
from klamm.client.patience import VIEWER_QUESTION
from klamm.client.topic_reader import TopicReader
from klamm.model import REQUEST_LOG_TOPIC

MAX_TRACES: Final = 1_000
MAX_SHOWN: Final = 200
"""The slowest ones are sent to the page; long polls, which are slow by intent, are counted apart."""


class TraceReader:
    """Keeps the traces that it has read from the topic, and one client. For one thread."""

    def __init__(self, bootstrap: Iterable[Address], config: ClientConfig, timeout_s: float) -> None:
        self._bootstrap = list(bootstrap)
        # A short patience: the page asks again in a few seconds.
        self._config = replace(config, patience=VIEWER_QUESTION)
        self._client: ClusterClient | None = None
        self._timeout_s = timeout_s
        self._from_topic: deque[dict[str, Any]] = deque(maxlen=MAX_TRACES)
        self._reader: TopicReader | None = None

    def read(self) -> dict[str, Any]:
        first = first_metadata(self._bootstrap, self._timeout_s)
        if first is None:
            return {"traces": [], "problem": "no broker answers"}
        found: list[dict[str, Any]] = []
        is_topic_needed = False
        for node in first.brokers:
            page = read_page(node, {}, self._timeout_s, "/traces")
            is_topic_needed = is_topic_needed or page is None
            found += [json.loads(line) for line in (page or "").splitlines()]
        problem = self._read_topic() if is_topic_needed else None
        found += self._from_topic
        by_id = {(it["broker_id"], it["at_ms"], it["sequence"]): it for it in found}
        slowest = sorted(by_id.values(), key=lambda it: -float(it["total_ms"]))
        polls = [it for it in slowest if _is_long_poll(it)]
        others = [it for it in slowest if not _is_long_poll(it)]
        return {"traces": [*others[:MAX_SHOWN], *polls[:MAX_SHOWN]], "problem": problem}

    def _read_topic(self) -> str | None:
        """Read the records that are new; return why there are none."""
        try:
            self._client = self._client or ClusterClient(self._config)
            if self._reader is None:
                reader = TopicReader(self._client, REQUEST_LOG_TOPIC)
                if not reader.open(last=MAX_TRACES):
                    return f"Some brokers do not serve traces, and there is no topic {REQUEST_LOG_TOPIC}."
                self._reader = reader
            self._from_topic.extend(json.loads(value) for value in self._reader.to_end())
        except (ClientError, OSError) as error:
            self._reader = None
            return f"{REQUEST_LOG_TOPIC} cannot be read: {error}"
        return None


def _is_long_poll(trace: dict[str, Any]) -> bool:
    return any(wait["purgatory"] == "Fetch" for wait in trace["waits"])
