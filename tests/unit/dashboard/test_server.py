"""The viewer's server: records as server-sent events, its own page only, and nothing for other sites."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from klamm.cli.app import app
from klamm.cli.dashboard import file_source, new_source
from klamm.cli.output import Failure
from klamm.dashboard.fault_drill import FaultDrill
from klamm.dashboard.record_history import MAX_RECORDS
from klamm.dashboard.serve import DashboardServer
from klamm.dashboard.web_app import STATIC, Source
from klamm.errors import KlammError

RECORDS = tuple(json.dumps({"kind": "watch", "at_ms": n, "broker_id": 1}).encode() for n in range(2_500))


@pytest.fixture(scope="module")
def server() -> Iterator[DashboardServer]:
    with DashboardServer(new_source(title="a run", records=RECORDS, end_ms=2_500)) as running:
        yield running


def get(server: DashboardServer, path: str, **headers: str) -> tuple[int, bytes, dict[str, str]]:
    address = server.address.removeprefix("http://").rstrip("/")
    connection = http.client.HTTPConnection(address, timeout=60)
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
    connection = http.client.HTTPConnection(server.address.removeprefix("http://").rstrip("/"), timeout=60)
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
    connection = http.client.HTTPConnection(server.address.removeprefix("http://").rstrip("/"), timeout=60)
    connection.request("GET", "/api/records", headers={"Last-Event-ID": "2499"})
    answer = connection.getresponse()
    assert answer.readline() == b"id: 2500\n"
    assert json.loads(answer.readline()[6:])[0]["at_ms"] == 2_499
    connection.close()


@pytest.mark.parametrize(
    "position", ["9" * 5_000, "%C2%B2", "-1"], ids=["too long to parse", "superscript", "negative"]
)
def test_an_invalid_position_begins_with_the_first_record(server: DashboardServer, position: str) -> None:
    assert get(server, f"/api/records?after={position}")[0] == 200


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


def test_the_number_of_kept_records_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Source] = []
    monkeypatch.setattr("klamm.cli.dashboard.serve", lambda source, *_: served.append(source))
    for options in (["--records", "7"], []):
        assert CliRunner().invoke(app, ["dashboard", *options]).exit_code == 0
    assert [source.most_records for source in served] == [7, MAX_RECORDS]


@pytest.mark.parametrize("option", ["--allow-changes", "--records 5", "--pipelines here"])
def test_options_of_a_live_cluster_are_refused_with_a_file(tmp_path: Path, option: str) -> None:
    path = tmp_path / "log.json"
    path.write_bytes(RECORDS[2])
    done = CliRunner().invoke(app, ["dashboard", "--file", str(path), *option.split()])
    assert isinstance(done.exception, Failure)
    assert str(done.exception).startswith(f"{option.split()[0]} needs a live cluster")


def test_a_cluster_that_is_not_there_yet_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klamm.cli.dashboard.serve", lambda *_: None)
    done = CliRunner().invoke(app, ["dashboard", "-b", "127.0.0.1:1"])
    assert done.exit_code == 0
    assert done.stderr.startswith("No broker answers at 127.0.0.1:1. ")
    assert done.stderr.endswith("The page shows the cluster when a broker answers.\n")


def test_streams_end_with_the_server(caplog: pytest.LogCaptureFixture) -> None:
    """A page that is open when the server stops: its stream ends as it should, and nothing is reported."""
    with DashboardServer(new_source(title="a run", records=RECORDS[:10], end_ms=10)) as running:
        connection = http.client.HTTPConnection(running.address.removeprefix("http://").rstrip("/"), timeout=60)
        connection.request("GET", "/api/records")
        answer = connection.getresponse()
        assert answer.readline().startswith(b"id: 10")
    rest = answer.read()  # raises IncompleteRead if the stream was cut
    connection.close()
    assert rest.startswith(b"data: ")
    assert not caplog.records


class _StoppedCluster:
    """As much of a cluster as a drill that ends asks for."""

    has_drill, broker_ids, is_zookeeper_running = True, (1,), True

    def is_running(self, broker_id: int) -> bool:
        return False

    def is_cut(self, broker_id: int) -> bool:
        return False

    def disk_delay_s(self, broker_id: int) -> float:
        return 0.0

    def slow_disk(self, broker_id: int, delay_s: float) -> None: ...

    def heal(self, broker_id: int) -> None: ...


def test_a_drill_that_has_ended_shows_its_last_state() -> None:
    """Pages ask until the server has stopped, and the drill ends before."""

    async def ask() -> None:
        drill = FaultDrill(cast(Any, _StoppedCluster()))
        before = await drill.state()
        drill.close()
        assert await drill.state() == before
        assert before["brokers"] == [{"id": 1, "state": "stopped", "is_cut": False, "is_slow": False}]
        with pytest.raises(KlammError, match="is being stopped"):
            await drill.perform("start", 1)

    asyncio.run(ask())
