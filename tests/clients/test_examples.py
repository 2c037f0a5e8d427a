"""The programs of examples/: four clients on one broker, the pytest suite, and the fault drill."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

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


def test_the_program_of_the_page_about_transactions(cluster: LocalCluster) -> None:
    (program,) = re.findall(
        r"^```python\n(.*?)^```$",
        (ROOT / "docs" / "concepts" / "transactions.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    for topic in ("orders", "invoices"):
        cluster.create_topic(topic, partitions=2)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for number in range(10):
        producer.produce("orders", value=f"order {number}".encode())
    assert producer.flush(60) == 0
    exec(program, {"servers": cluster.bootstrap_servers})
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
