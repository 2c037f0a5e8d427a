"""The routes of the viewer's pages: parameters, problems as sentences, and changes that only its own page may make."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from klamm.cli.dashboard import new_source
from klamm.client.connection_pool import ClientConfig
from klamm.dashboard.change_guard import MAX_BODY_BYTES
from klamm.dashboard.serve import DashboardServer
from klamm.dashboard.shown_bytes import shown


def nobody() -> tuple[str, int]:
    """An address that refuses connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        return host, port


def serving(**fields: Any) -> DashboardServer:
    client = ClientConfig((nobody(),))
    return DashboardServer(new_source(title="a cluster", client=client, status=lambda: None, **fields))


@pytest.fixture(scope="module")
def server() -> Iterator[DashboardServer]:
    with serving(allows_changes=True, pipelines=lambda: [{"name": "p"}]) as running:
        yield running


def ask(
    server: DashboardServer, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection(server.address.removeprefix("http://").rstrip("/"), timeout=60)
    try:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, given)
        answer = connection.getresponse()
        data = answer.read()
        return answer.status, json.loads(data) if data.startswith(b"{") else {"text": data.decode()}
    finally:
        connection.close()


def own(server: DashboardServer) -> dict[str, str]:
    _, about = ask(server, "GET", "/api/about")
    origin = server.address.rstrip("/")
    return {"Origin": origin, "X_Klamm_Token": about["token"], "Content_Type": "application/json"}


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("topic", "name is missing"),
        ("records?topic=t&start=nowhere", "nowhere"),
        ("records?topic=t&value=x", "not valid"),
        ("records?topic=t&partition=-1", "partition cannot be"),
        ("records?topic=t&cursor=[1]", "cursor is not an object"),
        ("records?topic=t&cursor={", "not valid"),
        ("records?topic=t&cursor=" + "[" * 20_000, "nested too deeply"),
        ("records?topic=t&value=99999999999999999999", "value cannot be"),
        ("record?topic=t&partition=0", "offset is missing"),
        ("group/reset?name=g&target=moon", "moon"),
        ("transactions/hanging?minutes=-3", "minutes cannot be"),
    ],
)
def test_wrong_parameters_are_named(server: DashboardServer, path: str, problem: str) -> None:
    status, found = ask(server, "GET", f"/api/cluster/{path}")
    assert status == 400 and problem in found["problem"]


def test_a_cluster_that_does_not_answer_is_a_problem(server: DashboardServer) -> None:
    """All pages at once, because each waits for a broker for as long as a viewer should."""
    paths = ["topics", "topic?name=t", "records?topic=t", "groups", "group?name=g", "transactions"]
    with ThreadPoolExecutor(len(paths)) as pool:
        answers = pool.map(lambda path: ask(server, "GET", f"/api/cluster/{path}"), paths)
    for path, (status, found) in zip(paths, answers, strict=True):
        assert status == 200 and "no broker answers" in found["problem"].lower(), path


def test_pipelines_are_those_of_the_source(server: DashboardServer) -> None:
    assert ask(server, "GET", "/api/cluster/pipelines")[1]["pipelines"] == [{"name": "p"}]


@pytest.mark.parametrize("path", ["/api/cluster/produce", "/api/cluster/group/reset"])
@pytest.mark.parametrize(
    ("change", "status", "problem"),
    [
        ({"X_Klamm_Token": ""}, 403, "token"),
        ({"X_Klamm_Token": "guessed"}, 403, "token"),
        ({"Origin": None}, 403, "Origin"),
        ({"Origin": "http://evil.example.com"}, 403, "refused"),
        ({"Origin": "null"}, 403, "refused"),
        ({"Content_Type": "text/plain"}, 400, "application/json"),
    ],
)
def test_changes_need_the_page(
    server: DashboardServer, path: str, change: dict[str, str | None], status: int, problem: str
) -> None:
    headers = {name: value for name, value in {**own(server), **change}.items() if value is not None}
    found_status, found = ask(server, "POST", path, b"{}", **headers)
    assert found_status == status and problem in (found.get("problem") or found["text"])


@pytest.mark.parametrize(
    ("path", "body", "problem"),
    [
        ("produce", b"[]", "not a JSON object"),
        ("produce", b"{", "not valid"),
        ("produce", b"[" * 200_000, "nested too deeply"),
        ("produce", b"{}", "topic"),
        ("produce", b'{"topic": "t", "value": 1}', "key and value are texts"),
        ("produce", b'{"topic": "t", "headers": [["a"]]}', "a header is a pair"),
        ("produce", b'{"topic": "t", "partition": true}', "partition cannot be"),
        ("produce", b'"' + b"x" * MAX_BODY_BYTES + b'"', "longer than"),
        ("group/reset", b'{"group": "g", "rows": []}', "group and rows"),
        ("group/reset", b'{"group": "g", "rows": [{"topic": "t"}]}', "a row needs"),
        ("group/reset", b'{"group": "g", "rows": [{"topic": "t", "partition": 0, "new": -1}]}', "new cannot be"),
    ],
)
def test_wrong_bodies_are_refused(server: DashboardServer, path: str, body: bytes, problem: str) -> None:
    status, found = ask(server, "POST", f"/api/cluster/{path}", body, **own(server))
    assert status == 400 and problem in found["problem"]


def test_without_allow_changes_nothing_is_changed() -> None:
    with serving() as server:
        assert ask(server, "GET", "/api/about")[1]["token"] == ""
        for path in ("produce", "group/reset"):
            status, found = ask(server, "POST", f"/api/cluster/{path}", b"{}", **own(server))
            assert status == 403 and "--allow-changes" in found["problem"]
        assert ask(server, "GET", "/api/drill")[0] == 404, "only the owner of a cluster has a drill"


@pytest.mark.parametrize(
    ("data", "limit", "expected"),
    [
        (None, 10, None),
        (b"", 10, ("", "text", False)),
        (b"caf\xc3\xa9", 10, ("café", "text", False)),
        (b"caf\xc3\xa9", 4, ("caf", "text", True)),
        (b"\xff\xfe", 10, ("fffe", "hex", False)),
        (b"\xff" * 9, 10, ("ff" * 5, "hex", True)),
        (b"abc\xc3", 10, ("616263c3", "hex", False)),
        (b"x" * 11, 10, ("x" * 10, "text", True)),
    ],
)
def test_bytes_are_text_or_hexadecimal(data: bytes | None, limit: int, expected: tuple[str, str, bool] | None) -> None:
    found = shown(data, limit)
    assert (found and (found["text"], found["encoding"], found["is_cut"])) == expected
    assert found is None or found["size"] == len(data or b"")
