"""How long calls to brokers may take: every deadline, retry and back-off of klamm's clients is decided here.

The commands belong to these clients. Their `--timeout` options, and how often they look at something that changes, are
their own. These retries are decided elsewhere, because no broker is asked:

- requests to ZooKeeper, in the modules of `controller`, `metadata`, `replica` and `server` that send them;
- appends to the broker's own logs and other work on its disks;
- questions to issuers of tokens and keys.

Followers have Kafka's key `replica.fetch.backoff.ms`; `replica/fetch_state.py` doubles their delays.

A `Patience` bounds one whole call, with all its attempts, connections and pauses: `deadline_ms` is the longest wait.
Connections and requests inside the call get at most the time that is left. `tests/tidy` rejects timeouts, retries and
back-offs elsewhere, and lists the exceptions, each with its reason.
"""

from __future__ import annotations

from typing import Final

from klamm.client.client_errors import AllRefusedError, ClientError, UnreachableError
from klamm.clock import Clock
from klamm.lazy_dataclass import lazy_dataclass

FOREVER: Final = None


@lazy_dataclass(frozen=True, slots=True)
class Patience:
    """`request_ms` bounds each connection attempt and each wait for a response inside the call.

    `first_contact_ms` ends the call earlier if no broker was ever reached and every address refuses connections.
    The pause between two attempts is `backoff_ms`; it doubles up to `longest_backoff_ms` if that is given.
    No attempt begins after `last_attempt_ms`, by default the deadline. The last one may take until the deadline.
    """

    deadline_ms: int | None
    backoff_ms: int = 100
    request_ms: int = 30_000
    first_contact_ms: int | None = None
    longest_backoff_ms: int | None = None
    last_attempt_ms: int | None = None

    def pause_ms(self, attempt: int = 0) -> int:
        """Return the pause after an attempt, counted from 0."""
        if self.longest_backoff_ms is None:
            return self.backoff_ms
        return min(self.backoff_ms << min(attempt, 16), self.longest_backoff_ms)

    def pause_s(self, attempt: int = 0) -> float:
        return self.pause_ms(attempt) / 1000

    @property
    def longest_pause_ms(self) -> int:
        return self.backoff_ms if self.longest_backoff_ms is None else self.longest_backoff_ms

    @property
    def deadline_s(self) -> float:
        assert self.deadline_ms is not None, "the call has no deadline"
        return self.deadline_ms / 1000

    @property
    def window(self) -> str:
        """The part of a sentence about a failure that names the time for attempts, if there is more than one."""
        return f" within {self.last_attempt_ms / 1000:g} s" if self.last_attempt_ms else ""

    @property
    def request_s(self) -> float:
        return self.request_ms / 1000


# One line per kind of call. The first number is the longest wait of the call in milliseconds.
SINGLE_REQUEST: Final = Patience(60_000, request_ms=30_000)
"""A new connection, and then one request over it: `request_ms` is the limit of each."""
CONTROL_REQUEST: Final = Patience(FOREVER, backoff_ms=100)
"""The controller resends until the broker acknowledges the request or leaves the cluster."""
LOG_END_QUERY: Final = Patience(FOREVER, backoff_ms=100, longest_backoff_ms=5_000)
"""The controller asks until the broker has reported the ends of its logs or leaves the cluster."""
CONTROLLER_CHANNEL: Final = Patience(30_000, backoff_ms=50)
"""A broker's request to the controller. `controller.socket.timeout.ms` replaces the deadline, and `request.timeout.ms`
that of a forwarded CreateTopics."""
ISR_CHANGE: Final = Patience(FOREVER, backoff_ms=50)
"""A leader proposes ISR changes until the controller decides them; CONTROLLER_CHANNEL bounds each request."""
FEATURE_QUESTION: Final = Patience(FOREVER, backoff_ms=1_000)
"""A broker asks another for its versions until that one is capable or leaves the cluster."""
TRANSACTION_MARKER: Final = Patience(FOREVER, backoff_ms=50, longest_backoff_ms=2_000)
"""A coordinator sends a marker until the leader of the partition acknowledges it or the partition is deleted."""
TRANSACTION_VERIFICATION: Final = Patience(10_000, request_ms=10_000)
"""A partition leader asks the coordinator of a transaction, once: the producer waits, and tries again itself."""
CONTROL_LOG: Final = Patience(5_000, backoff_ms=100, request_ms=5_000, longest_backoff_ms=5_000)
"""One attempt to write a batch of the control log or the request log. The pauses are those between attempts."""
CONTROL_LOG_END: Final = Patience(500, backoff_ms=20)
"""The last records of these logs when a broker stops, with all attempts."""
CLUSTER_CALL: Final = Patience(60_000)
"""A call of ClusterClient; `default.api.timeout.ms` replaces the deadline."""
DRIVER_CALL: Final = Patience(60_000, first_contact_ms=5_000)
"""The same from Spark's driver, which fails early if the address is wrong: a broker takes about 5 s to start."""
GROUP_COMMIT: Final = Patience(2_000)
"""A commit of a stream's position for a consumer group, before a batch; the next batch repeats it."""
PROGRESS_COMMIT: Final = Patience(5_000)
"""The same from a progress listener, which delays no batch."""
TRANSACTION_STEP: Final = Patience(60_000, backoff_ms=20)
"""A request to a transaction coordinator, which rejects requests for milliseconds while a transaction completes."""
TRANSACTION_END: Final = Patience(120_000, backoff_ms=20)
"""The end of a transaction whose outcome is decided: long enough for a coordinator to move after a failure."""
STATE_READ: Final = Patience(120_000, backoff_ms=20)
"""A read of committed state to its end: transactions of other writers may have to time out before."""
RANGE_FETCH: Final = Patience(120_000)
"""The next records of a range that Spark reads; `kafkaConsumer.pollTimeoutMs` replaces the deadline."""
DELIVERY: Final = Patience(120_000, backoff_ms=50)
"""A record batch until the leader acknowledges it; `delivery.timeout.ms` replaces the deadline."""
LOCAL_REQUEST: Final = Patience(10_000, backoff_ms=20, request_ms=10_000)
"""A request of LocalCluster to one of its brokers."""
LOCAL_CHANGE: Final = Patience(30_000, backoff_ms=20, request_ms=30_000)
"""A request of LocalCluster to its controller, which waits up to LOCAL_REQUEST for the change itself."""
TOPIC_LOOKUP: Final = Patience(15_000, request_ms=5_000)
"""LocalCluster asks ZooKeeper whether an unknown topic may still appear: a session and two reads, `request_ms` each."""
INTERNAL_TOPICS: Final = Patience(30_000, backoff_ms=20, request_ms=10_000)
"""LocalCluster waits for the creation of internal topics before it stops a broker."""
VIEWER_QUESTION: Final = Patience(5_000, request_ms=2_000)
"""A question of the viewer: the page shows what is known, and asks again."""
VIEWER_TRANSACTIONS: Final = Patience(2_000, request_ms=2_000, last_attempt_ms=0)
"""A question of the viewer about transactions to one broker: one attempt."""
VIEWER_STATUS: Final = Patience(3_000, request_ms=3_000)
"""The viewer asks a broker for its status, its metrics or its traces."""
CONTROL_TAIL: Final = Patience(FOREVER, backoff_ms=1_000)
"""The viewer follows the control log; VIEWER_QUESTION bounds each of its reads."""
RECORD_SEARCH: Final = Patience(3_000)
"""A page of records; a search that takes longer shows what it has found."""
SINGLE_RECORD: Final = Patience(5_000)
"""A record that a person writes: one attempt, and the broker waits this long for its replicas."""
TRANSACTION_QUESTION: Final = Patience(40_000, backoff_ms=100, request_ms=10_000, last_attempt_ms=30_000)
"""A command's request about a transaction, repeated for `--timeout` while coordinators or leaders move."""
COMMAND_REQUEST: Final = Patience(10_000, request_ms=10_000)
"""A request of a command to one broker."""
NEW_TOPIC: Final = Patience(10_000, backoff_ms=50, request_ms=10_000)
"""`klamm produce` waits for a topic that a broker may be creating."""
LOG_DIR_CHANGE: Final = Patience(30_000, request_ms=30_000)
"""A command sends one broker the directories of its replicas."""
COMMAND_CHANGE: Final = Patience(60_000, request_ms=10_000)
"""A call of the admin client in a command, with all its requests."""
CONTROLLER_SEARCH: Final = Patience(90_000, backoff_ms=200, request_ms=60_000, last_attempt_ms=30_000)
"""A command's request to the controller: 30 s to find one, 60 s for its answer.

A dead controller is replaced when its session ends, by default after 18 s.
"""
FIRST_CONTACT: Final = Patience(2_000, request_ms=2_000)
"""A command asks whether a broker answers at all, before calls that wait for one."""
QUICK_ANSWER: Final = Patience(500, request_ms=500)
"""A broker that is silent for this long is asked after the others: it may be paused, or its machine may be gone."""
EXAMINATION: Final = Patience(3_000, request_ms=3_000)
"""A command connects to an address that the client could not use, to find out why."""
COMPLETION: Final = Patience(1_500, request_ms=1_500)
"""Names of topics while the user types a command."""
CONTROL_LOG_READ: Final = Patience(20_000)
"""`klamm cluster why` reads the control log."""
CONTROL_LOG_LAG: Final = Patience(10_000, backoff_ms=500)
"""`klamm cluster why` waits for the first record of a partition: brokers write the control log behind the changes."""
TRACE_TOPIC: Final = Patience(FOREVER, backoff_ms=500)
"""`klamm trace` waits until the topic of the traces exists."""


@lazy_dataclass(frozen=True, slots=True)
class Polling:
    """Repeats a question whose answer may be out of date: `tries` more times, `every_ms` apart."""

    tries: int
    every_ms: int


MISSING_TOPIC: Final = Polling(tries=5, every_ms=200)
"""A topic that a query names and no broker knows: a broker that has just started does not know all topics."""
MISSING_PARTITION: Final = Polling(tries=25, every_ms=200)
"""A partition that the query has read before: it counts as deleted afterwards, which ends the query."""
LOST_AFTER_MS: Final = 5_000
"""A topic counts as deleted, and an offset as lost, if brokers report it without interruption for this long."""
FETCH_BACKOFF_MS: Final = 100
"""Pause before a range is fetched again after an error; `kafkaConsumer.pollTimeoutMs` is the deadline."""


def planning(call: Patience, retries: int, interval_ms: int) -> Patience:
    """Return the patience of one step of Spark's planner: `fetchOffset.numRetries` more calls, as one deadline."""
    assert call.deadline_ms is not None
    deadline_ms = (1 + retries) * call.deadline_ms + retries * interval_ms
    return Patience(deadline_ms, call.backoff_ms, call.request_ms, call.first_contact_ms)


def single_request(timeout_s: float) -> Patience:
    """Return the patience of a connection and one request over it. The request begins within `timeout_s`."""
    timeout_ms = int(timeout_s * 1000)
    return Patience(timeout_ms, request_ms=timeout_ms)


def repeated_for(call: Patience, window_ms: int, request_ms: int | None = None) -> Patience:
    """Return the patience of a call whose last attempt begins within `window_ms` and may take `request_ms`."""
    answer_ms = call.request_ms if request_ms is None else request_ms
    return Patience(window_ms + answer_ms, call.backoff_ms, answer_ms, last_attempt_ms=window_ms)


def remaining(call: Patience, left_s: float) -> Patience:
    """Return the patience of a call inside another one that ends in `left_s`."""
    return Patience(max(0, int(left_s * 1000)), call.backoff_ms, call.request_ms)


class Deadline:
    """The end of one call: a Patience that has begun to run."""

    def __init__(self, patience: Patience, clock: Clock) -> None:
        self.patience = patience
        self._clock = clock
        self._began = clock.monotonic()

    @property
    def elapsed_ms(self) -> float:
        return (self._clock.monotonic() - self._began) * 1000

    @property
    def has_passed(self) -> bool:
        limit = self.patience.deadline_ms
        return limit is not None and self.elapsed_ms >= limit

    @property
    def may_repeat(self) -> bool:
        """Whether another attempt may begin."""
        last = self.patience.last_attempt_ms
        return not self.has_passed and (last is None or self.elapsed_ms < last)

    @property
    def request_ms(self) -> float:
        """The time that a connection attempt or a response may take now; at least one millisecond."""
        limit = self.patience.deadline_ms
        left = self.patience.request_ms if limit is None else limit - self.elapsed_ms
        return max(1, min(self.patience.request_ms, left))

    def pause_s(self, what: str, error: Exception, *, was_reached: bool) -> float:
        """Return the pause before the next attempt, after one failed with `error`.

        Raises ClientError if the deadline has passed, UnreachableError if no broker was ever reached.
        """
        patience = self.patience
        if patience.first_contact_ms is not None and not was_reached and patience.deadline_ms is not None:
            is_refused = isinstance(error, AllRefusedError)
            limit = min(patience.first_contact_ms, patience.deadline_ms) if is_refused else patience.deadline_ms
            if self.elapsed_ms >= limit:
                raise UnreachableError(
                    f"The cluster cannot be reached: {error}. Check that it is running and that "
                    "kafka.bootstrap.servers is right."
                ) from None
        if self.has_passed:
            raise ClientError(
                f"The cluster did not return {what} within {patience.deadline_ms} ms: {error}."
            ) from error
        return patience.pause_s()
