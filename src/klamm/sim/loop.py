"""An event loop in virtual time, and the processes that share it.

`select` does not wait: it moves the clock to the next timer. If nothing can ever happen again, that is reported as a
deadlock. Every callback belongs to the process whose context it was scheduled in, so a process can be stopped for a
while (its callbacks wait) or killed (its callbacks never run), like a real process. If only its event loop stalls, the
callbacks of its other threads still run.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakSet

T = TypeVar("T")
EPOCH_MS: Final = 1_700_000_000_000
"""Initial time of the simulated clocks."""
MAX_TURNS: Final = 100_000
"""Maximum number of loop turns at one moment. Current seeds need a few hundred."""


class Deadlock(AssertionError):
    """Nothing is scheduled and nothing is ready: all waiting tasks would wait forever."""


class Livelock(AssertionError):
    """Callbacks schedule further callbacks for the same moment, endlessly: time would never advance."""


class SimProcess:
    """A simulated process on `host`, from its start to its end."""

    def __init__(self, name: str, host: str) -> None:
        self.name = name
        self.host = host
        self.is_dead = False
        self.held: list[asyncio.Handle] | None = None
        """Callbacks that wait while the process is paused or its event loop stalls, in order."""
        self.is_stalled = False
        """Whether only the event loop of the process is blocked."""
        self.tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self._kept: list[asyncio.Task[Any]] = []
        self.on_death: dict[Callable[[], None], None] = {}
        """Actions of the operating system after the process ended: it closes sockets."""

    def kill(self) -> None:
        """Nothing of it runs any longer. Its tasks are kept, so that the garbage collector does not finish them."""
        self.is_dead = True
        self._kept = list(self.tasks)
        for then in list(self.on_death):
            then()
        self.on_death.clear()

    def bury(self) -> None:
        """Discard unfinished tasks silently at the end of a run."""
        for task in [*self._kept, *self.tasks]:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                try:
                    task.get_coro().close()
                except (RuntimeError, ValueError):  # it waits in its clean-up, or is the task that runs this
                    continue


PROCESS: Final[ContextVar[SimProcess | None]] = ContextVar("process", default=None)


BESIDE_LOOP: Final[ContextVar[bool]] = ContextVar("beside_loop", default=False)
"""Whether a callback represents a thread of its process other than that of the event loop."""


def current_host() -> str:
    process = PROCESS.get()
    return "outside" if process is None else process.host


@contextmanager
def running_as(process: SimProcess | None) -> Iterator[Context]:
    """Callbacks scheduled inside belong to `process`; yields its context."""
    token = PROCESS.set(process)
    try:
        yield copy_context()
    finally:
        PROCESS.reset(token)


class _VirtualSelector(selectors.BaseSelector):
    """A selector without files. Waiting advances the clock."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._turns = 0

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        raise AssertionError("a simulation has no sockets")

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        raise AssertionError("a simulation has no sockets")

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return {}

    def close(self) -> None:
        pass

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock("nothing is scheduled and nothing is ready")
        self._count_turn(self.now_s + max(timeout, 0.0))
        return []

    def _count_turn(self, now_s: float) -> None:
        self._turns = 0 if now_s > self.now_s else self._turns + 1
        self.now_s = now_s
        if self._turns > MAX_TURNS:
            raise Livelock(f"{MAX_TURNS} turns of the loop at {now_s} s")


class SimLoop(asyncio.SelectorEventLoop):
    """Connections go through `network`, which the cluster sets."""

    network: Any = None

    def __init__(self, seed: int) -> None:
        self._virtual = _VirtualSelector()
        self.rng = random.Random(seed)
        self.problems: list[str] = []
        """Callbacks that raised: each is a bug."""
        super().__init__(self._virtual)
        self.set_exception_handler(self._note_problem)

    def time(self) -> float:
        return self._virtual.now_s

    def _make_self_pipe(self) -> None:
        self._internal_fds = 0

    def _close_self_pipe(self) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def _note_problem(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Reports of the garbage collector are ignored: their time is not deterministic."""
        if "handle" in context:
            self.problems.append(f"{context['message']}: {context.get('exception')!r}")

    # --- callbacks and their processes -----------------------------------------------------------------------------

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        context = copy_context() if context is None else context
        process = context.get(PROCESS)
        if process is None:
            return super().call_soon(callback, *args, context=context)
        own: list[asyncio.Handle] = []
        handle = super().call_soon(self._run_for, process, own, callback, args, context=context)
        own.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        context = copy_context() if context is None else context
        process = context.get(PROCESS)
        if process is None:
            return super().call_at(when, callback, *args, context=context)
        own: list[asyncio.Handle] = []
        handle = super().call_at(when, self._run_for, process, own, callback, args, context=context)
        own.append(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        context = copy_context() if context is None else context
        if context.get(BESIDE_LOOP):
            context.run(BESIDE_LOOP.set, False)
        return self.call_soon(callback, *args, context=context)

    def _run_for(
        self, process: SimProcess, own: list[asyncio.Handle], callback: Callable[..., object], args: tuple[Any, ...]
    ) -> None:
        if process.is_dead:
            return
        if process.held is not None and not (process.is_stalled and BESIDE_LOOP.get()):
            process.held.append(own[0])
        else:
            callback(*args)

    def create_task(self, coro: Any, *, name: object = None, context: Context | None = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = super().create_task(coro, name=name, context=context)
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is not None:
            process.tasks.add(task)
        return task

    def spawn(self, process: SimProcess | None, coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Runs a coroutine as part of a process."""
        with running_as(process) as context:
            return self.create_task(coro, context=context)

    def pause(self, process: SimProcess) -> None:
        """Pause a process, as by SIGSTOP: none of its callbacks runs, and its input waits."""
        if process.held is None:
            process.held = []

    def stall(self, process: SimProcess) -> None:
        """Block the event loop of a process, as by a callback that does not return. Its other threads run."""
        process.is_stalled = process.held is None
        self.pause(process)

    def resume(self, process: SimProcess) -> None:
        """Callbacks that became due meanwhile run at once, in order."""
        process.is_stalled = False
        held, process.held = process.held or [], None
        self._ready.extend(handle for handle in held if not handle.cancelled())  # type: ignore[attr-defined]

    # --- what would be threads and sockets -------------------------------------------------------------------------

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Any, *args: Any
    ) -> asyncio.Future[Any]:
        """Run it immediately; deliver the result a little later."""
        future: asyncio.Future[Any] = self.create_future()
        try:
            result = func(*args)
        except Exception as error:
            self.call_later(0.001, _settle, future, None, error)
        else:
            self.call_later(0.001, _settle, future, result, None)
        return future

    def bind_listener(self, host: str, port: int) -> Any:
        """Stands for a listening socket and knows its address."""
        return BoundListener(host, port)

    async def create_server(self, protocol_factory: Any, *, sock: BoundListener, **options: Any) -> Any:  # type: ignore[override]
        return self.network.listen(*sock.getsockname(), protocol_factory)

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        return await self.network.connect(host, port, protocol_factory)


class BoundListener(NamedTuple):
    host: str
    port: int

    def getsockname(self) -> tuple[str, int]:
        return self.host, self.port


def _settle(future: asyncio.Future[Any], value: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)


class SimClock:
    """The clock of a machine. Its wall clock can jump; its monotonic clock cannot."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.offset_ms = 0

    def now_ms(self) -> int:
        return EPOCH_MS + self.offset_ms + int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time()


class SimExecutor(Executor):
    """The log manager's thread: each job takes some time and finishes after the previous one."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._due_s = 0.0
        self._jobs: dict[Future[Any], Callable[[], Any]] = {}

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        self._jobs[future] = lambda: fn(*args, **kwargs)
        self._due_s = max(self._due_s, self._loop.time()) + self._loop.rng.uniform(0.0001, 0.02)
        self._loop.call_at(self._due_s, self._run, future)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for future in list(self._jobs):
            self._run(future)

    def _run(self, future: Future[Any]) -> None:
        job = self._jobs.pop(future, None)
        if job is None:
            return
        try:
            future.set_result(job())
        except Exception as error:
            future.set_exception(error)
