"""Runs questions to the cluster in a few threads, each with its own client: the client blocks."""

from __future__ import annotations

import asyncio
from collections import deque
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
    """Owner: the loop of the web server. Clients keep their connections between questions, one question at a time."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = replace(config, patience=VIEWER_QUESTION, fetch_max_wait_ms=0)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="viewer")
        self._free = [ClusterClient(self.config) for _ in range(THREADS)]
        self._waiting: deque[asyncio.Future[ClusterClient]] = deque()
        self._is_closed = False

    async def ask(self, question: Callable[[ClusterClient], T]) -> T:
        """Return the answer. Raises TooBusyError, and the errors of the question."""
        client = await self._client()
        running = asyncio.get_running_loop().run_in_executor(self._pool, _answer, client, question)
        running.add_done_callback(lambda _: self._release(client))
        # If the browser gives up, the thread still finishes the question before the client is free.
        return await asyncio.shield(running)

    async def _client(self) -> ClusterClient:
        if self._free:
            return self._free.pop()
        if len(self._waiting) >= MAX_WAITING:
            raise TooBusyError("The viewer has too many questions to answer. Close some of its pages.")
        turn: asyncio.Future[ClusterClient] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._release(turn.result())
            raise

    def _release(self, client: ClusterClient) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(client)
                return
        if self._is_closed:
            client.close()
        else:
            self._free.append(client)

    def close(self) -> None:
        """Give up the questions that wait, and close connections; those in use are closed with their answer."""
        self._is_closed = True
        for turn in self._waiting:
            turn.cancel()
        self._waiting.clear()
        while self._free:
            self._free.pop().close()
        self._pool.shutdown(wait=False)


def _answer(client: ClusterClient, question: Callable[[ClusterClient], T]) -> T:
    with client.within(VIEWER_QUESTION):
        return question(client)
