"""The viewer's server: records as server-sent events, its own page only, and nothing for other sites."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from klamm.cli.dashboard import file_source, new_source
from klamm.cli.output import Failure
from klamm.dashboard.serve import DashboardServer
from klamm.dashboard.web_app import STATIC

RECORDS = tuple(json.dumps({"kind": "watch", "at_ms": n, "broker_id": 1}).encode() for n in range(2_500))


@pytest.fixture(scope="module")
def server() -> Iterator[DashboardServer]:
    with DashboardServer(new_source(title="a run", records=RECORDS, end_ms=2_500)) as running:
        yield running


def get(server: DashboardServer, path: str, **headers: str) -> tuple[int, bytes, dict[str, str]]:
    address = server.address.removeprefix("http://").rstrip("/")
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        connection.putrequest("GET", path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        answer = connection.getresponse()
        body = answer.read(2_000_000) if "event-stream" not in (answer.getheader("content-type") or "") else b""
        return answer.status, body, {name.lower(): value for name, value in answer.getheaders()}
    finally:
        connection.close()


def test_it_serves_the_page_and_its_modules(server: DashboardServer) -> None:
    status, page, headers = get(server, "/")
    assert status == 200 and b"static/live.js" in page
    assert "default-src 'none'" in headers["content-security-policy"]
    for path in STATIC.iterdir():
        assert get(server, f"/static/{path.name}")[0] == 200
    assert json.loads(get(server, "/api/about")[1])["title"] == "a run"


def test_all_records_arrive_as_events(server: DashboardServer) -> None:
    connection = http.client.HTTPConnection(server.address.removeprefix("http://").rstrip("/"), timeout=10)
    connection.request("GET", "/api/records")
    answer = connection.getresponse()
    found: list[object] = []
    while True:
        line = answer.readline()
        if line.startswith(b"event: state"):
            break
        if line.startswith(b"data: "):
            found += json.loads(line[6:])
    connection.close()
    assert [json.dumps(record) for record in found] == [record.decode() for record in RECORDS]


def test_a_reader_continues_where_it_was(server: DashboardServer) -> None:
    connection = http.client.HTTPConnection(server.address.removeprefix("http://").rstrip("/"), timeout=10)
    connection.request("GET", "/api/records", headers={"Last-Event-ID": "2499"})
    answer = connection.getresponse()
    assert answer.readline() == b"id: 2500\n"
    assert json.loads(answer.readline()[6:])[0]["at_ms"] == 2_499
    connection.close()


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "rebound.example.com"},
        {"Host": "rebound.example.com:80"},
        {"Host": ""},
        {"Origin": "http://evil.example.com"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
@pytest.mark.parametrize("path", ["/", "/api/about", "/api/records", "/static/live.js"])
def test_other_sites_are_refused(server: DashboardServer, path: str, headers: dict[str, str]) -> None:
    assert get(server, path, **headers)[0] == 403


def test_traces_of_a_live_cluster(server: DashboardServer) -> None:
    assert get(server, "/api/traces")[0] == 404, "a recorded run has none"
    traces = {"traces": [{"api": "Fetch"}], "problem": None}
    with DashboardServer(new_source(title="live", status=lambda: {}, traces=lambda: traces)) as live:
        status, body, _ = get(live, "/api/traces")
        assert (status, json.loads(body)) == (200, traces)
        assert get(live, "/api/traces", Host="rebound.example.com")[0] == 403


def test_its_own_origin_is_accepted(server: DashboardServer) -> None:
    assert get(server, "/api/about", Origin=server.address.rstrip("/"), Sec_Fetch_Site="same-origin")[0] == 200


@pytest.mark.parametrize("path", ["/static/../web_app.py", "/static/%2e%2e/web_app.py", "/static//etc/passwd"])
def test_files_outside_are_not_served(server: DashboardServer, path: str) -> None:
    assert get(server, path)[0] == 404


def test_a_file_with_a_control_log_is_sorted(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_bytes(b"\n".join((RECORDS[5], RECORDS[2], b"", RECORDS[9])))
    assert file_source(path).records == (RECORDS[2], RECORDS[5], RECORDS[9])


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"", "no records"), (b"{", "Line 1 .* is not JSON"), (b"[1]", "Line 1 .* is not a record")],
)
def test_another_file_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "log.json"
    path.write_bytes(content)
    with pytest.raises(Failure, match=problem):
        file_source(path)
