"""Runs questions to the cluster in a few threads, each with a client of its own: the client blocks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final, TypeVar

from klamm.client.cluster_client import ClusterClient
from klamm.client.connection_pool import ClientConfig
from klamm.client.patience import VIEWER_QUESTION
from klamm.errors import KlammError

T = TypeVar("T")
THREADS: Final = 4
MAX_WAITING: Final = 40


class TooBusyError(KlammError):
    """More questions wait than the viewer keeps."""


class ClientThreads:
    """Owner: the loop of the web server. A thread keeps its client, and so its connections, between questions."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = replace(config, patience=VIEWER_QUESTION, fetch_max_wait_ms=0)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="viewer")
        self._own = threading.local()
        self._waiting = 0

    async def ask(self, question: Callable[[ClusterClient], T]) -> T:
        """Return the answer. Raises TooBusyError, and the errors of the question."""
        if self._waiting >= MAX_WAITING:
            raise TooBusyError("The viewer has too many questions to answer. Close some of its pages.")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, self._run, question)
        finally:
            self._waiting -= 1

    def _run(self, question: Callable[[ClusterClient], T]) -> T:
        client: ClusterClient | None = getattr(self._own, "client", None)
        if client is None:
            client = self._own.client = ClusterClient(self.config)
        with client.within(VIEWER_QUESTION):
            return question(client)

    def close(self) -> None:
        """Give up the questions that wait. Connections end with their threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)
