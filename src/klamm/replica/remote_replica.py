"""A follower's progress, as its leader sees it through the follower's fetches."""

from __future__ import annotations

from typing import Final, Protocol

from klamm.model import UNKNOWN_BROKER_EPOCH

UNKNOWN_OFFSET: Final = -1


class FollowerFetches(Protocol):
    """The fetch session of a follower."""

    @property
    def last_fetch_ms(self) -> int:
        """When the follower's last fetch arrived."""

    @property
    def previous_fetch_ms(self) -> int:
        """When the fetch before it arrived; 0 if there was none."""


class RemoteReplica:
    """Owned by its Partition. Offsets are unknown (-1) until the first fetch of this leadership.

    A follower that has everything is not checked again until the partition changes. Until then each fetch of its
    session counts as a fetch of this replica (`follow_session`), without any work per partition.
    """

    __slots__ = (
        "_caught_up_ms",
        "_confirmed_ms",
        "_session",
        "broker_epoch",
        "broker_id",
        "last_fetch_leader_log_end_offset",
        "last_fetch_time_ms",
        "last_sent_high_watermark",
        "log_end_offset",
        "log_start_offset",
    )

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.broker_epoch = UNKNOWN_BROKER_EPOCH
        self._session: FollowerFetches | None = None
        self.last_fetch_time_ms = 0
        self._confirmed_ms = 0
        self.reset(0)

    @property
    def last_caught_up_time_ms(self) -> int:
        session = self._session
        return self._caught_up_ms if session is None else max(self._caught_up_ms, session.last_fetch_ms)

    @last_caught_up_time_ms.setter
    def last_caught_up_time_ms(self, time_ms: int) -> None:
        self.leave_session()
        self._caught_up_ms = time_ms

    @property
    def confirmed_ms(self) -> int:
        """The latest time at which the follower is known to have followed this leader; 0 if it never did.

        A fetch may have waited in a socket while this broker was paused, so its arrival does not prove that the
        follower is alive. It does prove that the follower received the previous response, so it followed this leader
        at that time.
        """
        session = self._session
        return self._confirmed_ms if session is None else max(self._confirmed_ms, session.previous_fetch_ms)

    def follow_session(self, session: FollowerFetches) -> None:
        """The follower has the whole log: every fetch of its session counts."""
        self._session = session

    def leave_session(self) -> None:
        """The partition is about to change: note the last fetch of the session as the last one of this replica."""
        session = self._session
        if session is None:
            return
        self._session = None
        self._confirmed_ms = max(self._confirmed_ms, session.previous_fetch_ms)
        if session.last_fetch_ms > self.last_fetch_time_ms:
            self._caught_up_ms = max(self._caught_up_ms, session.last_fetch_ms)
            self.last_fetch_time_ms = session.last_fetch_ms
            self.last_fetch_leader_log_end_offset = self.log_end_offset

    def reset(self, last_caught_up_time_ms: int) -> None:
        """A new leader epoch begins: the follower's progress is unknown again.

        The election confirms nothing: its LeaderAndIsr may have waited in a socket while this broker was paused.
        """
        self._session = None
        self.log_end_offset = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET
        self.last_fetch_leader_log_end_offset = 0
        self.last_fetch_time_ms = 0
        self._caught_up_ms = last_caught_up_time_ms
        self._confirmed_ms = 0
        self.last_sent_high_watermark = UNKNOWN_OFFSET

    def on_fetch(
        self, fetch_offset: int, log_start_offset: int, leader_log_end_offset: int, now_ms: int, broker_epoch: int
    ) -> None:
        """A fetch at `fetch_offset` acknowledges everything before it.

        It is caught up now if it requests the leader's end; it was caught up at its previous fetch if it requests the
        leader's end of that time. So a follower that keeps pace under constant load stays in sync.
        """
        if self._session is not None:
            self.leave_session()
        self._confirmed_ms = max(self._confirmed_ms, self.last_fetch_time_ms)
        if fetch_offset >= leader_log_end_offset:
            self._caught_up_ms = max(self._caught_up_ms, now_ms)
        elif fetch_offset >= self.last_fetch_leader_log_end_offset:
            self._caught_up_ms = max(self._caught_up_ms, self.last_fetch_time_ms)
        if broker_epoch != self.broker_epoch or fetch_offset < self.log_end_offset:  # it started again
            self.last_sent_high_watermark = UNKNOWN_OFFSET
        self.log_end_offset = fetch_offset
        self.log_start_offset = log_start_offset
        self.last_fetch_leader_log_end_offset = leader_log_end_offset
        self.last_fetch_time_ms = now_ms
        self.broker_epoch = broker_epoch

    def is_caught_up(self, leader_log_end_offset: int, now_ms: int, max_lag_ms: int) -> bool:
        return self.log_end_offset == leader_log_end_offset or now_ms - self.last_caught_up_time_ms <= max_lag_ms
