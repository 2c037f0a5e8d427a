"""Reads the control log of a live cluster into a `RecordHistory`, from the beginning and then as records arrive.

The client blocks, so it has its own thread. Records cross to the loop of the web server by posting.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from klamm.client.cluster_client import ClusterClient
from klamm.client.connection_pool import ClientConfig
from klamm.client.patience import CONTROL_TAIL, VIEWER_QUESTION
from klamm.client.topic_reader import TopicReader
from klamm.dashboard.record_history import RecordHistory
from klamm.model import CONTROL_LOG_TOPIC

_log = logging.getLogger(__name__)


class ControlTail:
    """Reading starts with the first reader of the page. It joins no group, so it leaves no trace in the cluster."""

    def __init__(self, config: ClientConfig, history: RecordHistory) -> None:
        self._config = config
        self._history = history
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.problem: str | None = None
        """Why nothing is read at present."""

    def start(self) -> None:
        if self._thread is None:
            loop = asyncio.get_running_loop()

            def post(records: list[bytes]) -> None:
                loop.call_soon_threadsafe(self._history.add, records)

            self._thread = threading.Thread(target=self._run, args=(post,), name="control-log-reader", daemon=True)
            self._thread.start()

    def close(self) -> None:
        self._stop.set()

    def _run(self, post: Callable[[list[bytes]], object]) -> None:
        """Read until `close`. After an error the reader continues where it was."""
        # A short patience: a leader that is cut off answers nobody, and the next one soon leads.
        with ClusterClient(replace(self._config, patience=VIEWER_QUESTION)) as client:
            reader = TopicReader(client, CONTROL_LOG_TOPIC)
            is_open = False
            while not self._stop.is_set():
                try:
                    is_open = is_open or self._open(reader)
                    if is_open and (values := reader.read()):
                        post(values)
                    self.problem = self.problem if not is_open else None
                except Exception as error:
                    if self._stop.is_set():
                        return  # The loop of the web server has ended meanwhile.
                    self.problem = f"the control log cannot be read: {error}"
                    _log.warning("reading %s failed; retrying: %s", CONTROL_LOG_TOPIC, error)
                if not is_open or self.problem:
                    self._stop.wait(CONTROL_TAIL.pause_s())

    def _open(self, reader: TopicReader) -> bool:
        is_open = reader.open()
        if not is_open:
            self.problem = f"there is no topic {CONTROL_LOG_TOPIC}: klamm.control.log.enable is false, or it is new"
        return is_open
