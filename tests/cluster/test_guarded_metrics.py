"""`klamm cluster status` on brokers whose metrics require TLS and a password."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from klamm.cli.app import app
from klamm.cli.broker_metrics import LOGIN_MISSING, LOGIN_WRONG, MetricsEndpoint
from klamm.testing import LocalCluster

LOGIN = "scraper:a secret of the metrics"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    configs = {"klamm.metrics.port": 0, "klamm.metrics.ssl.enable": True, "klamm.metrics.basic.auth": LOGIN}
    with LocalCluster(brokers=1, tls=True, broker_configs=configs) as running:
        yield running


def status(cluster: LocalCluster, path: Path, login: str | None, *options: str) -> Any:
    file = cluster.write_client_properties(path=path / "client.properties")
    assert file is not None
    if login is not None:
        file.write_text(f"{file.read_text()}klamm.metrics.basic.auth={login}\n")
    arguments = ["cluster", "status", "--command-config", str(file), "-b", cluster.bootstrap_servers, *options]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert LOGIN.partition(":")[2] not in done.output
    return done


def epoch(cluster: LocalCluster, path: Path, login: str | None, *options: str) -> int | None:
    found = json.loads(status(cluster, path, login, "--format", "json", *options).stdout)
    answer: int | None = found["brokers"][0]["controller_epoch"]
    return answer


def test_status_reads_guarded_metrics(cluster: LocalCluster, tmp_path: Path) -> None:
    assert epoch(cluster, tmp_path, LOGIN) == 1
    assert epoch(cluster, tmp_path, LOGIN, "--metrics", f"1={cluster.metrics_address(1)}") == 1


@pytest.mark.parametrize(("login", "reason"), [(None, LOGIN_MISSING), ("scraper:wrong", LOGIN_WRONG)])
def test_status_reports_why_the_login_is_refused(
    cluster: LocalCluster, tmp_path: Path, login: str | None, reason: str
) -> None:
    assert epoch(cluster, tmp_path, login) is None
    output = status(cluster, tmp_path, login).output
    assert f"The metrics of broker 1 refuse the login: {reason}." in output
    assert "klamm.metrics.basic.auth" in reason and "Set klamm.metrics.port" not in output


def test_a_new_certificate_reaches_the_metrics(cluster: LocalCluster) -> None:
    address = cluster.metrics_address(1)
    assert address is not None
    host, _, port = address.rpartition(":")
    before = ssl.get_server_certificate((host, int(port)))
    cluster.renew_certificate()
    assert ssl.get_server_certificate((host, int(port))) != before


@pytest.mark.parametrize(
    ("host", "tls", "sent"), [("10.0.0.7", False, False), ("10.0.0.7", True, True), ("::1", False, True)]
)
def test_a_login_crosses_a_network_under_tls_only(host: str, tls: bool, sent: bool) -> None:
    assert MetricsEndpoint(host, 9404, tls).request(LOGIN).has_header("Authorization") is sent
