"""The programs of examples/: four clients on one broker, the pytest suite, and the fault drill."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import confluent_kafka
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from klamm.testing import LocalCluster
from tests.support.java_clients import jars
from tests.support.source_tree import ROOT

EXAMPLES = ROOT / "examples"
TESTS_OF_EXAMPLES = {
    "clients": "clients/test_examples.py",
    "drills": "clients/test_examples.py",
    "pipelines": "spark/pipeline/test_examples.py",
    "spark": "spark/pipeline/test_examples.py",
    "testing": "clients/test_examples.py",
}
"""The tests that run the programs of each folder."""
GREETINGS = "".join(f"hello {number}\n" for number in range(10))


def run(*command: str | Path) -> str:
    done = subprocess.run(list(map(str, command)), cwd=ROOT, env=os.environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("program", ["with_confluent_kafka.py", "with_kafka_python.py", "with_aiokafka.py"])
def test_a_python_client(program: str, servers: str) -> None:
    assert run(sys.executable, EXAMPLES / "clients" / program, servers) == GREETINGS


@pytest.mark.long
def test_the_java_client(servers: str) -> None:
    path = ":".join(jars())
    options = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    assert run("java", *options, "-cp", path, EXAMPLES / "clients" / "WithJavaClient.java", servers) == GREETINGS


def test_the_transactional_copy(servers: str) -> None:
    said = run(sys.executable, EXAMPLES / "clients" / "transactional_copy.py", servers)
    assert said.startswith("30 invoices are committed, each once\n40 records were written")


def transactional_program() -> str:
    page = (ROOT / "docs" / "concepts" / "transactions.md").read_text()
    (program,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return str(program)


RETRIABLE = KafkaError(KafkaError._TIMED_OUT, "no answer yet", retriable=True)
ABORTABLE = KafkaError(KafkaError._STATE, "abort", txn_requires_abort=True)
FENCED = KafkaError(KafkaError._FENCED, "fenced", fatal=True)
MOVED = KafkaError(KafkaError.NOT_COORDINATOR)


class Scripted:
    """A producer and a consumer whose calls fail as the script says. It has one record per transaction."""

    def __init__(self, script: dict[str, list[KafkaError | None]]) -> None:
        self.calls: list[str] = []
        self._script = script

    def __getattr__(self, name: str) -> Any:
        def call(*_: Any, **__: Any) -> Any:
            self.calls.append(name)
            problems = self._script.get(name, [])
            if problems and (problem := problems.pop(0)) is not None:
                raise KafkaException(problem)
            return {"consume": [Mock(error=Mock(return_value=None), value=lambda: b"x")] * 10}.get(name, [])

        return call


def run_scripted(monkeypatch: pytest.MonkeyPatch, **script: list[KafkaError | None]) -> list[str]:
    """Run the program of the page with clients that fail as the script says; return the calls."""
    client = Scripted(script)
    for name in ("Consumer", "Producer"):
        monkeypatch.setattr(confluent_kafka, name, lambda _: client)
    exec(transactional_program(), {"servers": ""})
    return [each for each in client.calls if each not in ("produce", "assignment", "position")]


def test_the_program_of_the_page_repeats_what_may_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = run_scripted(
        monkeypatch,
        init_transactions=[RETRIABLE],
        send_offsets_to_transaction=[RETRIABLE],
        commit_transaction=[RETRIABLE, RETRIABLE],
    )
    assert calls.count("init_transactions") == 2 and calls.count("send_offsets_to_transaction") == 2
    assert calls.count("begin_transaction") == 1 and calls.count("commit_transaction") == 3
    assert "abort_transaction" not in calls


def test_the_program_of_the_page_aborts_and_asks_for_its_positions_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = run_scripted(
        monkeypatch, commit_transaction=[ABORTABLE], abort_transaction=[RETRIABLE], committed=[MOVED, MOVED]
    )
    assert calls.count("begin_transaction") == 2 and calls.count("commit_transaction") == 2
    assert calls.count("abort_transaction") == 2 and calls.count("committed") == 3


def test_the_program_of_the_page_ends_when_it_is_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KafkaException) as raised:
        run_scripted(monkeypatch, commit_transaction=[FENCED])
    assert raised.value.args[0].fatal()


def test_the_program_of_the_page_about_transactions(cluster: LocalCluster) -> None:
    for topic in ("orders", "invoices"):
        cluster.create_topic(topic, partitions=2)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for number in range(10):
        producer.produce("orders", value=f"order {number}".encode())
    assert producer.flush(60) == 0
    exec(transactional_program(), {"servers": cluster.bootstrap_servers})
    reader = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "auditors",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )
    reader.subscribe(["invoices"])
    found: list[bytes] = []
    while len(found) < 10:
        found += [message.value() or b"" for message in reader.consume(100, 1) if message.error() is None]
    reader.close()
    assert sorted(found) == [f"invoice for order {number}".encode() for number in range(10)]


@pytest.mark.long
def test_the_pytest_suite() -> None:
    suite = EXAMPLES / "testing"
    assert "2 passed" in run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", suite, suite)


@pytest.mark.long
def test_the_fault_drill() -> None:
    assert "acknowledged 1500, found 1500, lost 0, duplicates 0" in run(
        sys.executable, EXAMPLES / "drills" / "kill_the_leader.py"
    )


def test_every_example_is_listed_and_run() -> None:
    """A test names each program. The suite is run as a folder."""
    listed = (EXAMPLES / "README.md").read_text()
    programs = [path.relative_to(EXAMPLES) for path in EXAMPLES.rglob("*") if path.suffix in (".py", ".java", ".yaml")]
    assert len(programs) == 13
    for program in programs:
        assert str(program) in listed
        folder, name = program.parts
        assert (folder if folder == "testing" else name) in words_of_tests(TESTS_OF_EXAMPLES[folder]), program


@cache
def words_of_tests(file: str) -> frozenset[str]:
    """The strings in the other tests of a file and in their decorators."""
    tree = ast.parse((ROOT / "tests" / file).read_text())
    tests = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"))
    return frozenset(
        part.value
        for test in tests
        if test.name != test_every_example_is_listed_and_run.__name__
        for part in ast.walk(test)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    )
