"""GuardedProtocol: a connection whose frames pass a gate. It has the timers of the gate; the gate decides."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final

from klamm.network.api_table import ApiTableEntry
from klamm.network.connection_environment import ConnectionEnvironment
from klamm.network.gate import Answer, Gate
from klamm.network.muting import AUTHENTICATION, PausableProtocol
from klamm.network.request_context import ChannelContext
from klamm.protocol.frames import Frame, FrameReader
from klamm.protocol.wire import BytesLike

MAX_DIRECT_BYTES: Final = 1024
"""A larger answer of an authentication is sent like other responses, whose unread bytes are counted."""
_log = logging.getLogger(__name__)


class GuardedProtocol(PausableProtocol):
    """A refused peer gets its answer after a delay, and then the connection closes."""

    __slots__ = (
        "_deadline",
        "_max_request_bytes",
        "_monotonic",
        "_now_ms",
        "_reader",
        "_recorder",
        "_session_end",
        "_traffic",
        "_turn_at",
        "context",
        "gate",
        "is_write_paused",
        "last_active_at",
    )

    def __init__(self, environment: ConnectionEnvironment) -> None:
        super().__init__(environment.loop)
        self.context = ChannelContext()
        self.gate = Gate(environment.security, self.context)
        self.is_write_paused = False
        self.last_active_at = 0.0
        self._recorder = environment.recorder
        self._traffic = environment.traffic
        self._now_ms, self._monotonic = environment.clock.now_ms, environment.clock.monotonic
        self._max_request_bytes = environment.max_request_bytes
        limit = self.gate.max_receive_bytes
        self._reader = FrameReader(
            self._max_request_bytes if limit is None else min(limit, self._max_request_bytes), environment.scratch
        )
        self._deadline: asyncio.TimerHandle | None = None
        self._session_end: asyncio.TimerHandle | None = None
        self._turn_at = 0.0
        """When this authentication may continue; 0 if it has not had to wait for the failures of its address."""

    def log_refusal(self, level: int, action: str, reason: str, error: BaseException | None = None) -> None:
        """Log why the connection is refused or closed, unless its address has caused too many such lines."""
        context = self.context
        if (more := self.gate.security.failures.note(context.client_host, reason, self._monotonic())) is not None:
            _log.log(level, "%s connection %s: %s%s", action, context.connection_id, reason, more, exc_info=error)

    def _limit_authentication(self) -> None:
        """Bound the time in which the peer must prove who it is."""
        if self.gate.is_closed and self._deadline is None:
            self._deadline = self._loop.call_later(self.gate.security.timeout_s, self._on_late)

    def _on_late(self) -> None:
        self._deadline = None
        if self.gate.is_closed and self.gate.session is None:
            if not self.gate.refusal:  # Otherwise the failure has been noted.
                self.log_refusal(logging.INFO, "Closing", "it has not authenticated in time")
                self.gate.count_failure()
                if not self.paused & AUTHENTICATION:  # A peer that the broker lets wait has not failed.
                    self.gate.security.budget.note_failure(self.context.client_host, self._monotonic())
            self.abort()

    def turn_wait_s(self, now: float) -> float:
        """Return how long the authentication must wait for its turn. It waits for one turn only."""
        if not self._turn_at:
            turn_at = self.gate.security.budget.begin_at(self.context.client_host, now)
            if turn_at <= now:
                return 0.0
            self._turn_at = turn_at
        return max(0.0, self._turn_at - now)

    def _cancel_authentication(self) -> None:
        for timer in (self._deadline, self._session_end):
            if timer is not None:
                timer.cancel()
        self._deadline = self._session_end = None

    def _at_gate(self, frames: deque[Frame], now: float) -> bool:
        """Return whether the first frame passes as a request. Otherwise it is answered, or waits. Raises ProtocolError.

        An attempt from an address with many failures waits before its password is checked.
        """
        gate = self.gate
        is_noted = bool(gate.refusal)  # The rest of the exchange checks nothing.
        if not is_noted and gate.expects_token and (wait_s := self.turn_wait_s(now)) > 0:
            self.pause(AUTHENTICATION)
            self._loop.call_later(wait_s, self.resume, AUTHENTICATION)
            return False
        was_session = gate.session
        answer = gate.receive(frames[0], self._now_ms(), now)
        if answer is None:
            return True
        frames.popleft()
        if answer.problem is not None:
            if not is_noted:
                self._note_refusal(answer.problem, now)
            self._end_later(answer, now)
            return False
        if gate.refusal and not is_noted:
            self._note_refusal(gate.refusal, now)  # A client may leave without the rest of the exchange.
        if gate.session is not was_session:
            self._on_session()
        self._give(answer, now)
        return False

    def _on_session(self) -> None:
        self._cancel_authentication()
        self._turn_at = 0.0
        self._reader.max_bytes = self._max_request_bytes
        session = self.gate.session
        if session is not None and session.lifetime_ms is not None:
            self._session_end = self._loop.call_later(session.lifetime_ms / 1000, self.gate.expire)

    def _note_refusal(self, problem: str, now: float) -> None:
        security, context = self.gate.security, self.context
        if (more := security.failures.note(context.client_host, problem, now)) is not None:
            _log.info("Failed authentication with %s (%s%s)", context.connection_id, problem, more)
        security.budget.note_failure(context.client_host, now)

    def _end_later(self, answer: Answer, now: float) -> None:
        self._cancel_authentication()
        self.pause(AUTHENTICATION)
        self._deadline = self._loop.call_later(self.gate.security.failure_delay_s, self._end_refused, answer, now)

    def _end_refused(self, answer: Answer, now: float) -> None:
        self._deadline = None
        self.stop_reading()
        self._give(answer, now)

    def _is_written(self, api: ApiTableEntry, answer: Answer, body: list[BytesLike], received_at: float) -> bool:
        """Write a small answer that no earlier one precedes. Returns False if it must take the usual way.

        Answers are most of a login's cost, so they do not become a Request.
        """
        transport = self._transport
        first = body[0]
        size = api.response_header_bytes + len(first)
        if transport is None or self.is_write_paused or len(body) > 1 or size > MAX_DIRECT_BYTES:
            return False
        if self._recorder.is_logging or transport.is_closing():
            return False
        begun = self._monotonic()
        self._write([api.pack_response_header(size, answer.correlation_id) + first], size + 4)
        now = self.last_active_at = self._monotonic()
        self._recorder.record_answer(api, received_at, begun, now)
        return True

    # The connection has these.

    def _write(self, parts: list[BytesLike], size: int) -> None:
        raise NotImplementedError

    def _give(self, answer: Answer, now: float) -> None:
        """Write an answer in its turn; after one with a problem, close the connection."""
        raise NotImplementedError

    def stop_reading(self) -> None:
        raise NotImplementedError

    def abort(self) -> None:
        raise NotImplementedError
