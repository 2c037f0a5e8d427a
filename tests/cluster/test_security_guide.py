"""The guide docs/how-to/security.md, done step by step."""

from __future__ import annotations

import ssl
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from klamm.local.launch import zookeeper_process
from klamm.local.ports import ReservedPort
from tests.cluster.test_tutorials import environment, run, save, started
from tests.support.tutorial import Block, blocks

WAIT_S = 300
PORTS = ("9092", "9093", "9192", "9193", "12181")


ADMIN = """\
security.protocol=SASL_SSL
ssl.truststore.type=PEM
ssl.truststore.location=certificates/ca.pem
sasl.mechanism=SCRAM-SHA-512
sasl.username=admin
sasl.password=the administrator's password
"""
REPLICATE = """
until klamm cluster status > status.txt 2>&1 && grep -q "^ *2 " status.txt; do sleep 1; done
klamm topic create orders --replication-factor 2
echo copied | klamm produce orders --acks all
until klamm cluster status | grep " 0 under-replicated"; do sleep 1; done
"""
"""Both brokers know each other, and the follower fetches: it has logged in to the leader."""


REFUSAL = "TOPIC_AUTHORIZATION_FAILED"
NEW_CERTIFICATE = "klamm tls issue"


def served_certificates(numbers: dict[str, str]) -> list[str]:
    """The certificates of both brokers, as clients see them."""
    return [ssl.get_server_certificate(("localhost", int(numbers[port]))) for port in ("9092", "9093")]


def with_ports(block: Block, numbers: dict[str, str]) -> Block:
    text = block.text
    for port, number in numbers.items():
        text = text.replace(f":{port}", f":{number}").replace(f"={port}\n", f"={number}\n")
    return Block(block.language, block.title, block.role, text)


@pytest.mark.long
def test_from_nothing_to_a_secured_cluster(tmp_path: Path) -> None:
    reserved = {port: ReservedPort() for port in PORTS}
    numbers = {port: str(each.number) for port, each in reserved.items()}
    outputs: list[str] = []
    replaced: list[str] = []
    with ExitStack() as running:
        for port in reserved.values():
            running.callback(port.close)
        for block in (with_ports(each, numbers) for each in blocks("security.md", "how-to")):
            if block.role == "scram":
                continue
            if block.title is not None:
                save(block, tmp_path)
            elif block.role == "background":
                running.enter_context(started(block.text.strip(), tmp_path, environment()))
            elif block.language == "sh":
                before = served_certificates(numbers) if NEW_CERTIFICATE in block.text else []
                outputs.append(run(block.text, tmp_path, environment()))
                if before:
                    after = served_certificates(numbers)
                    assert before[0] == before[1] != after[0] == after[1], "both brokers serve the new certificate"
                    replaced.append(after[0])
    everything = "".join(outputs)
    assert "a guarded record" in everything and "SCRAM-SHA-512" in everything
    assert "User:alice" in everything
    assert REFUSAL in everything
    (new,) = replaced
    assert new.strip() in (tmp_path / "certificates" / "broker.pem").read_text()


@pytest.mark.long
def test_brokers_log_in_with_scram_from_the_first_start(tmp_path: Path) -> None:
    """The section about SCRAM between brokers: no broker runs when the users are written."""
    found = [each for each in blocks("security.md", "how-to") if each.role == "scram"]
    run("klamm tls init certificates", tmp_path, environment())
    (tmp_path / "secret").write_text("klamm:replace-this-secret")
    (tmp_path / "secret").chmod(0o600)
    with ExitStack() as running:
        ports = [ReservedPort() for _ in range(3)]
        for port in ports:
            running.callback(port.close)
        numbers = {"12182": str(ports[0].number), "9096": str(ports[1].number)}
        zookeeper = zookeeper_process(tmp_path, ports[0].number, is_temporary=True, secret_file=tmp_path / "secret")
        running.callback(zookeeper.discard)
        zookeeper.spawn()
        zookeeper.wait_ready(time.monotonic() + WAIT_S)
        config, commands = (with_ports(each, numbers) for each in found)
        save(config, tmp_path)
        assert "broker" in run(commands.text, tmp_path, environment())
        second = config.text.replace("broker.id=1", "broker.id=2").replace("scram-data", "scram-data-2")
        (tmp_path / "second.properties").write_text(second.replace(f":{ports[1].number}", f":{ports[2].number}"))
        for name in ("scram-broker", "second"):
            running.enter_context(started(f"klamm broker --config {name}.properties", tmp_path, environment()))
        (tmp_path / "admin.properties").write_text(ADMIN)
        (tmp_path / "admin.properties").chmod(0o600)
        servers = f"localhost:{ports[1].number}"
        variables = {"KLAMM_COMMAND_CONFIG": "admin.properties", "KLAMM_BOOTSTRAP_SERVERS": servers}
        run(REPLICATE, tmp_path, environment(**variables))
