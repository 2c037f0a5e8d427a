"""The routes of the pages Topics, Groups, Transactions and Pipelines: parameters in, JSON out, errors as sentences."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from klamm.client.cluster_client import ClusterClient
from klamm.client.record_browser import PageQuery, Start, browse
from klamm.client.record_producer import produce
from klamm.client.reset_rules import ResetTarget
from klamm.dashboard import cluster_pages
from klamm.dashboard.change_guard import ChangeGuard, RefusedError, from_json
from klamm.dashboard.client_threads import ClientThreads, TooBusyError
from klamm.dashboard.shown_bytes import WHOLE_BYTES, shown_page
from klamm.errors import KlammError
from klamm.model import TopicPartition
from klamm.protocol.record_batch import Record

MAX_PAGE: Final = 500
_MAX_TEXT: Final = 1_000
_INT64: Final = (1 << 63) - 1

Pipelines = Callable[[], Sequence[Mapping[str, Any]]]
"""Returns the published state of pipelines. It reads files."""
Handler = Callable[[Request], Awaitable[Any]]


def answered(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """Return JSON. An error becomes `{"problem": sentence}`; one of the cluster is an answer as any other."""

    async def answer(request: Request) -> Response:
        try:
            return JSONResponse(await handler(request))
        except RefusedError as error:
            return JSONResponse({"problem": str(error)}, 403)
        except TooBusyError as error:
            return JSONResponse({"problem": str(error)}, 503)
        except ValueError as error:
            return JSONResponse({"problem": f"The request is not valid: {error}"}, 400)
        except (KlammError, OSError) as error:
            return JSONResponse({"problem": str(error)})

    return answer


class ClusterRoutes:
    """Answers from the cluster, for one server."""

    def __init__(self, threads: ClientThreads, guard: ChangeGuard, pipelines: Pipelines | None) -> None:
        self._threads = threads
        self._guard = guard
        self._pipelines = pipelines
        self._transactions = cluster_pages.TransactionPages(threads.config)

    def routes(self) -> list[Route]:
        reading = {
            "topics": self._topics,
            "topic": self._topic,
            "topic/groups": self._topic_groups,
            "replicas": self._replicas,
            "records": self._records,
            "record": self._record,
            "groups": self._groups,
            "group": self._group,
            "group/reset": self._preview,
            "transactions": self._list_transactions,
            "transactions/hanging": self._hanging,
            "pipelines": self._list_pipelines,
        }
        changing = {"produce": self._produce, "group/reset": self._reset}
        return [
            *(Route(f"/api/cluster/{name}", answered(handler), methods=["GET"]) for name, handler in reading.items()),
            *(Route(f"/api/cluster/{name}", answered(handler), methods=["POST"]) for name, handler in changing.items()),
        ]

    # --- topics ---

    async def _topics(self, request: Request) -> Any:
        wanted, internal = text(request, "q"), request.query_params.get("internal") == "1"
        return await self._ask(lambda client: cluster_pages.topics_page(client, wanted, internal))

    async def _topic(self, request: Request) -> Any:
        name = named(request, "name")
        return await self._ask(lambda client: cluster_pages.topic_page(client, name))

    async def _topic_groups(self, request: Request) -> Any:
        name = named(request, "name")
        return await self._ask(lambda client: cluster_pages.topic_groups(client, name))

    async def _replicas(self, request: Request) -> Any:
        name, partition = named(request, "topic"), whole(request, "partition")
        return await self._ask(lambda client: cluster_pages.replica_offsets(client, name, partition))

    async def _records(self, request: Request) -> Any:
        query = page_query(request)
        return shown_page(await self._ask(lambda client: browse(client, query)))

    async def _record(self, request: Request) -> Any:
        """Return one record, less cut than in a list."""
        offset = whole(request, "offset")
        query = PageQuery(named(request, "topic"), Start.OFFSET, offset, partition=whole(request, "partition"), limit=1)
        page = await self._ask(lambda client: browse(client, query))
        if not page.records or page.records[0].record.offset != offset:
            raise KlammError(f"There is no record at offset {offset} any longer.")
        return shown_page(page, WHOLE_BYTES)

    async def _produce(self, request: Request) -> Any:
        given = await self._guard.body(request)
        topic = str(given.get("topic") or "")
        partition = None if given.get("partition") is None else number(given["partition"], "partition", 0)
        headers = given.get("headers") or []
        if not topic or not isinstance(headers, list):
            raise ValueError("topic and headers are needed")
        record = Record(
            timestamp=cluster_pages.now_ms(),
            key=encoded(given.get("key")),
            value=encoded(given.get("value")),
            headers=[header(each) for each in headers],
        )
        at, offset = await self._ask(lambda client: produce(client, topic, partition, record))
        return {"partition": at, "offset": offset}

    # --- groups ---

    async def _groups(self, request: Request) -> Any:
        wanted = text(request, "q")
        return await self._ask(lambda client: cluster_pages.groups_page(client, wanted))

    async def _group(self, request: Request) -> Any:
        name = named(request, "name")
        return await self._ask(lambda client: cluster_pages.group_page(client, name))

    async def _preview(self, request: Request) -> Any:
        group, topic = named(request, "name"), text(request, "topic") or None
        target = ResetTarget(text(request, "target"))
        value = number(request.query_params.get("value") or "0", "value", -_INT64)
        return await self._ask(lambda client: cluster_pages.reset_preview(client, group, topic, target, value))

    async def _reset(self, request: Request) -> Any:
        """Commit exactly the offsets that the preview has shown."""
        given = await self._guard.body(request)
        group, rows = str(given.get("group") or ""), given.get("rows")
        if not group or not isinstance(rows, list) or not rows or len(rows) > cluster_pages.MAX_ROWS:
            raise ValueError("group and rows are needed")
        offsets = {
            TopicPartition(str(row["topic"]), number(row["partition"], "partition", 0)): number(row["new"], "new", 0)
            for row in rows
            if isinstance(row, dict) and row.keys() >= {"topic", "partition", "new"}
        }
        if len(offsets) != len(rows):
            raise ValueError("a row needs topic, partition and new, each partition once")
        return await self._ask(lambda client: cluster_pages.reset_offsets(client, group, offsets))

    # --- transactions and pipelines ---

    async def _list_transactions(self, request: Request) -> Any:
        return await self._ask(lambda _: self._transactions.transactions())

    async def _hanging(self, request: Request) -> Any:
        minutes = number(request.query_params.get("minutes") or "15", "minutes", 0)
        return await self._ask(lambda _: self._transactions.hanging(minutes))

    async def _list_pipelines(self, request: Request) -> Any:
        if self._pipelines is None:
            raise KlammError("Pipelines are not read: klamm[spark] is not installed.")
        runs = await asyncio.to_thread(self._pipelines)
        return {"pipelines": list(runs)[: cluster_pages.MAX_ROWS], "now_ms": cluster_pages.now_ms()}

    async def _ask(self, question: Callable[[ClusterClient], Any]) -> Any:
        return await self._threads.ask(question)


# --- parameters ---


def text(request: Request, name: str) -> str:
    return request.query_params.get(name, "")[:_MAX_TEXT]


def named(request: Request, name: str) -> str:
    if not (found := text(request, name)):
        raise ValueError(f"{name} is missing.")
    return found


def number(given: Any, name: str, least: int) -> int:
    found = int(given) if isinstance(given, str | int) and not isinstance(given, bool) else None
    if found is None or not least <= found <= _INT64:
        raise ValueError(f"{name} cannot be {str(given)[:40]!r}.")
    return found


def whole(request: Request, name: str) -> int:
    return number(named(request, name), name, 0)


def page_query(request: Request) -> PageQuery:
    """Parse `topic`, `start`, `value`, `partition`, `limit`, `q`, `cursor` and `skips`."""
    parameters = request.query_params
    partition = parameters.get("partition")
    return PageQuery(
        named(request, "topic"),
        Start(parameters.get("start") or Start.NEWEST),
        number(parameters.get("value") or "0", "value", 0),
        partition=None if not partition else number(partition, "partition", 0),
        limit=max(1, min(MAX_PAGE, number(parameters.get("limit") or "50", "limit", 1))),
        search=text(request, "q"),
        cursor=_cursor(parameters.get("cursor")),
        skips=parameters.get("skips") == "1",
    )


def _cursor(given: str | None) -> dict[int, int] | None:
    if not given:
        return None
    found = from_json(given)
    if not isinstance(found, dict):
        raise ValueError("cursor is not an object.")
    return {number(name, "a partition", 0): number(value, "an offset", 0) for name, value in found.items()}


def encoded(given: Any) -> bytes | None:
    if given is not None and not isinstance(given, str):
        raise ValueError("key and value are texts, or null.")
    # A page can send half of a pair of surrogates, which is not a character.
    return None if given is None else given.encode("utf-8", "replace")


def header(given: Any) -> tuple[str, bytes | None]:
    if not isinstance(given, list) or len(given) != 2 or not isinstance(given[0], str):
        raise ValueError("a header is a pair of name and value.")
    return given[0], encoded(given[1])
