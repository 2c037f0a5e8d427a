"""Handle a request with very many elements in parts, so that no request holds the loop (docs/adr/0016).

The elements of most requests do not depend on each other: a request for 100,000 partitions is answered as 500 requests
for 200 partitions, and the responses are joined. The loop turns between the parts. Small requests go to the handler as
they are. An event for the controller is also no larger than a part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import wraps
from operator import attrgetter
from types import GeneratorType
from typing import Any, Final, NamedTuple

from klamm.apis.api_declaration import Broker, RequestContext
from klamm.apis.deadlines import Deadline
from klamm.protocol.chunked import ChunkedList
from klamm.waiting import Steps, all_results, begin, result_of

MOST: Final = 200
"""Elements that are handled in one slice of the loop, if each takes a few microseconds."""
_PAUSE: Final = 1000
"""Elements that are checked before the loop serves others."""

Handler = Callable[[Broker, RequestContext, Any], Any]
Hold = Callable[[Collection[Any]], None]


class _Part(NamedTuple):
    elements: list[Any]
    is_continued: bool
    """Whether the first element continues the last one of the previous part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """How a request is split and its responses are joined.

    `asked` and `answers` name the arrays of request and response. With `rows` and `row_answers` the elements have
    arrays of their own (topics of partitions), which are split as well; `name` is the field by which an answer names
    its element. `weigh` counts an element as several. With `row_bytes` a part also ends before the row with which its
    rows would exceed `most_bytes`; it has at least one row. Elements with the same `key` go into the same part, as the
    handler may compare them; at most `copies` of them are looked at. Without `key`, `copies=1` drops repeated rows.
    Parts are handled one after the other, each when the one before is answered, or with `together` without waiting.
    `later` handles all parts but the first. `union` is an array of nodes in the response.
    """

    asked: str
    answers: str
    rows: str | None = None
    row_answers: str = ""
    name: str = "name"
    most: int = MOST
    weigh: Callable[[Any], int] | None = None
    row_bytes: Callable[[Any], int] | None = None
    most_bytes: int = 0
    key: Callable[[Any], Hashable] | None = None
    copies: int = 0
    together: bool = False
    later: Handler | None = None
    union: str | None = None

    def is_small(self, elements: Sequence[Any] | None, weigh: Callable[[Any], int] | None) -> bool:
        if elements is None:
            return True
        if weigh is None or len(elements) > self.most:
            return len(elements) <= self.most
        room = self.most
        for element in elements:
            room -= weigh(element)
        return room >= 0

    def split(self, elements: Sequence[Any], hold: Hold) -> Iterator[_Part | None]:
        """Yield the parts, and None where the loop may turn."""
        if self.rows is None:
            return self._split_whole(elements, hold)
        return self._split_rows(elements, self.rows, hold)

    def _split_whole(self, elements: Sequence[Any], hold: Hold) -> Iterator[_Part | None]:
        part: list[Any] = []
        room = self.most
        chosen: Iterable[list[Any]] = ([element] for element in elements)
        if self.key is not None:
            groups: dict[Hashable, list[Any]] = {}
            hold(groups)
            for index, element in enumerate(elements):
                same = groups.setdefault(self.key(element), [])
                if len(same) < self.copies:
                    same.append(element)
                if index % _PAUSE == _PAUSE - 1:
                    yield None
            chosen = groups.values()
        for same in chosen:
            part += same
            room -= len(same) if self.weigh is None else sum(map(self.weigh, same))
            if room <= 0:
                yield _Part(part, False)
                part, room = [], self.most
        if part:
            yield _Part(part, False)

    def _split_rows(self, elements: Sequence[Any], rows: str, hold: Hold) -> Iterator[_Part | None]:
        part: list[Any] = []
        room, room_bytes, is_continued = self.most, self.most_bytes, False
        seen: set[tuple[Any, Any]] = set()
        hold(seen)
        for element in elements:
            all_rows = getattr(element, rows)
            start = 0
            while start == 0 or start < len(all_rows):
                taken = all_rows[start : start + room]
                if self.row_bytes is not None and taken:
                    fitting, room_bytes = _fitting(taken, self.row_bytes, room_bytes, is_first=not part)
                    if not fitting:
                        yield _Part(part, is_continued)
                        part, room, room_bytes = [], self.most, self.most_bytes
                        continue
                    taken = taken[:fitting]
                if not part:
                    is_continued = start > 0
                start += max(1, len(taken))
                room -= 1 + len(taken)
                if self.copies:
                    name = getattr(element, self.name)
                    taken = [row for row in dict.fromkeys(taken) if (name, row) not in seen]
                    seen.update((name, row) for row in taken)
                part.append(_with(element, rows, taken))
                if room <= 0:
                    yield _Part(part, is_continued)
                    part, room, room_bytes = [], self.most, self.most_bytes
        if part:
            yield _Part(part, is_continued)


def _fitting(
    rows: Sequence[Any], row_bytes: Callable[[Any], int], room_bytes: int, *, is_first: bool
) -> tuple[int, int]:
    """Return how many of the next rows have at most `room_bytes`, and the room that is left then.

    The first row of a part always fits. If it is larger than a part, the room that is left is negative.
    """
    for count, row in enumerate(rows):
        left = room_bytes - row_bytes(row)
        if left < 0 and (count or not is_first):
            return count, room_bytes
        room_bytes = left
    return len(rows), room_bytes


def in_parts(handle: Handler, parts: Parts) -> Handler:
    """A handler that splits large requests."""
    asked = attrgetter(parts.asked)
    if parts.rows is not None:
        return _in_parts_of_rows(handle, parts, attrgetter(parts.rows))

    @wraps(handle)
    def handle_in_parts(broker: Broker, ctx: RequestContext, req: Any) -> Any:
        if parts.is_small(asked(req), parts.weigh):
            return handle(broker, ctx, req)
        return begin(_PartedRequest(handle, parts, broker, ctx, req).steps())

    return handle_in_parts


def _in_parts_of_rows(handle: Handler, parts: Parts, rows: Callable[[Any], Sequence[Any]]) -> Handler:
    asked, most, row_bytes = attrgetter(parts.asked), parts.most, parts.row_bytes

    def count_rows(element: Any) -> int:
        return len(rows(element))

    def are_light(elements: Sequence[Any], row_bytes: Callable[[Any], int]) -> bool:
        room = parts.most_bytes
        for element in elements:
            for row in rows(element):
                room -= row_bytes(row)
        return room >= 0

    @wraps(handle)
    def handle_in_parts(broker: Broker, ctx: RequestContext, req: Any) -> Any:
        elements = asked(req)
        is_one = elements is not None and len(elements) == 1  # the usual request
        is_small = len(rows(elements[0])) <= most if is_one else parts.is_small(elements, count_rows)
        if is_small and (row_bytes is None or are_light(elements, row_bytes)):
            return handle(broker, ctx, req)
        return begin(_PartedRequest(handle, parts, broker, ctx, req).steps())

    return handle_in_parts


class _PartedRequest:
    """One large request in progress."""

    __slots__ = ("_broker", "_ctx", "_deadline", "_handle", "_parts", "_req", "_responses", "_rest")

    def __init__(self, handle: Handler, parts: Parts, broker: Broker, ctx: RequestContext, req: Any) -> None:
        self._handle = handle
        self._parts = parts
        self._broker = broker
        self._ctx = ctx
        self._req = req
        self._rest = parts.split(getattr(req, parts.asked), ctx.hold)
        self._responses: list[tuple[Any, bool]] = []
        """Responses or their futures, and whether each continues the previous answer."""
        timeout_ms = getattr(req, "timeout_ms", None)
        self._deadline = None if timeout_ms is None or parts.together else Deadline(broker.loop, timeout_ms)

    def steps(self) -> Steps[Any]:
        """Handle the parts that are left, then join the responses."""
        for part in self._rest:
            yield
            if part is None:
                continue
            response = self._handle_part(part)
            if isinstance(response, GeneratorType):
                response = yield from response
            if not self._parts.together:
                response = yield from result_of(response)
            self._responses.append((response, part.is_continued))
            if _has_failed(response):
                return response
        waiting = [response for response, _ in self._responses if isinstance(response, asyncio.Future)]
        yield from result_of(all_results(waiting))
        return (yield from self._join())

    def _handle_part(self, part: _Part) -> Any:
        request = _with(self._req, self._parts.asked, part.elements)
        if self._deadline is not None:
            request.timeout_ms = self._deadline.remaining_ms
        later = self._parts.later
        handle = later if later is not None and self._responses else self._handle
        return handle(self._broker, self._ctx, request)

    def _join(self) -> Steps[Any]:
        joined = _Joined(self._parts)
        self._responses.reverse()
        while self._responses:
            response, is_continued = self._responses.pop()
            yield
            found = yield from result_of(response)
            if found is None or _has_failed(found):
                return found
            joined.add(found, is_continued)
        return joined.response


class _Joined:
    """The response to all parts so far."""

    __slots__ = ("_answers", "_nodes", "_parts", "_tail", "_tail_of", "response")

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._answers: ChunkedList[Any] = ChunkedList()
        self._nodes: dict[int, Any] = {}
        self._tail: ChunkedList[Any] = ChunkedList()
        self._tail_of: Any = None
        self.response: Any = None

    def add(self, response: Any, is_continued: bool) -> None:
        parts = self._parts
        answers = getattr(response, parts.answers)
        if self.response is None:
            self.response = response
            setattr(response, parts.answers, self._answers)
        if is_continued and self._answers and answers and self._is_same(self._answers[-1], answers[0]):
            self._extend(self._answers[-1], getattr(answers[0], parts.row_answers))
            answers = answers[1:]
        self._answers.extend(answers)
        if parts.union is not None:
            for node in getattr(response, parts.union):
                self._nodes.setdefault(node.node_id, node)
            setattr(self.response, parts.union, list(self._nodes.values()))

    def _is_same(self, one: Any, other: Any) -> bool:
        name = self._parts.name
        return bool(getattr(one, name) == getattr(other, name))

    def _extend(self, answer: Any, rows: Sequence[Any]) -> None:
        if self._tail_of is not answer:
            self._tail_of = answer
            self._tail = ChunkedList(getattr(answer, self._parts.row_answers))
            setattr(answer, self._parts.row_answers, self._tail)
        self._tail.extend(rows)


def _with(struct: Any, field: str, value: Any) -> Any:
    changed = copy(struct)
    setattr(changed, field, value)
    return changed


def _has_failed(response: Any) -> bool:
    """Whether an error concerns the whole request."""
    return bool(getattr(response, "error_code", 0))
