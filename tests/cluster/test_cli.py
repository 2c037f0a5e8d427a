"""The commands against a running broker."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from klamm.cli.main import main
from klamm.testing import LocalCluster

WAIT_S = 300
"""For a command that ends by itself, on any machine."""


@dataclass(frozen=True)
class Done:
    stdout: str
    stderr: str


Run = Callable[..., Done]


@pytest.fixture
def klamm(klamm_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process; it must succeed unless `fails` is given."""

    def run(*arguments: str, stdin: str = "", fails: bool = False) -> Done:
        monkeypatch.setenv("KLAMM_BOOTSTRAP_SERVERS", klamm_cluster.bootstrap_servers)
        monkeypatch.setattr(sys, "argv", ["klamm", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with pytest.raises(SystemExit) as ended:
            main()
        done = Done(*capfd.readouterr())
        assert (ended.value.code or 0) == (1 if fails else 0), done.stderr
        return done

    return run


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip()]


def test_topics(klamm: Run) -> None:
    assert (
        klamm("topic", "create", "orders", "--partitions", "3", "-c", "retention.ms=1000").stdout
        == "Created topic orders.\n"
    )
    assert "orders" in klamm("topic", "list").stdout.splitlines()
    head, topic, *_, last = rows(klamm("topic", "describe", "orders").stdout)
    assert head == ["Topic", "TopicId", "PartitionCount", "ReplicationFactor", "Configs"]
    assert topic[0] == "orders" and len(topic[1]) == 22 and topic[2:] == ["3", "1", "retention.ms=1000"]
    assert last == ["orders", "2", "1", "1", "1"]
    klamm("topic", "alter", "orders", "--partitions", "4", "--delete-config", "retention.ms")
    assert rows(klamm("topic", "describe", "orders").stdout)[1][2:] == ["4", "1", "-"]
    assert "TOPIC_ALREADY_EXISTS" in klamm("topic", "create", "orders", fails=True).stderr
    klamm("topic", "create", "orders", "--if-not-exists")
    assert klamm("topic", "delete", "orders").stdout == "Deleted topic orders.\n"
    assert klamm("topic", "describe", "orders", fails=True).stderr == "Error: There is no topic orders.\n"


def test_finished_steps_are_reported_when_the_rest_fails(klamm: Run) -> None:
    klamm("topic", "create", "part-a", "part-b")
    created = klamm("topic", "create", "part-a", "part-z", "part-b", fails=True)
    assert created.stdout == "Created topic part-z.\n" and created.stderr.count("was not created") == 2
    deleted = klamm("topic", "delete", "part-a", "part-none", "part-b", "part-z", fails=True)
    assert sorted(rows(deleted.stdout)) == [["Deleted", "topic", f"part-{name}."] for name in "abz"]
    assert deleted.stderr.startswith("Error: Topic part-none was not deleted: ") and deleted.stderr.count("\n") == 1


def test_topic_ids_are_written_as_on_the_disk(klamm: Run, klamm_cluster: LocalCluster) -> None:
    names = [f"identified-{number}" for number in range(20)]
    klamm("topic", "create", *names, "--partitions", "1")
    described = {row[0]: row[1] for row in rows(klamm("topic", "describe", *names).stdout) if len(row[1]) == 22}
    on_disk = {
        path.parent.name.removesuffix("-0"): path.read_text().split("topic_id:")[1].strip()
        for path in klamm_cluster.data_dir.glob("broker-1/identified-*/partition.metadata")
    }
    assert described == on_disk and len(on_disk) == len(names)
    klamm("topic", "delete", *names)


def test_produce_and_consume(klamm: Run, klamm_topic: str) -> None:
    done = klamm("produce", klamm_topic, "-K", ":", "-H", "trace=1", "-z", "zstd", stdin="a:1\nb:2\nc:\n")
    assert done.stderr == f"3 records to {klamm_topic}.\n"
    done = klamm("consume", klamm_topic, "--from-beginning", "-e", "-f", "%p/%o %k=%v %h\\n")
    assert done.stdout == "0/0 a=1 trace=1\n0/1 b=2 trace=1\n0/2 c= trace=1\n"
    done = klamm("consume", klamm_topic, "--from-beginning", "--max-messages", "1", "-f", "json")
    assert json.loads(done.stdout)["key"] == "a"
    assert klamm("consume", "no-such-topic", fails=True).stderr == "Error: There is no topic no-such-topic.\n"


def test_groups(klamm: Run, klamm_topic: str) -> None:
    klamm("produce", klamm_topic, stdin="1\n2\n3\n")
    consumed = klamm("consume", klamm_topic, "--group", "readers", "--from-beginning", "--max-messages", "2")
    assert consumed.stdout == "1\n2\n"
    assert ["readers", "Empty"] in rows(klamm("group", "list").stdout)
    head, row = rows(klamm("group", "describe", "readers").stdout)
    assert head[:6] == ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"]
    assert row[:6] == ["readers", klamm_topic, "0", "2", "3", "1"]
    shown = klamm("group", "reset", "readers", "--topic", klamm_topic, "--to-earliest")
    assert "Nothing was changed" in shown.stderr and rows(shown.stdout)[1][3] == "0"
    klamm("group", "reset", "readers", "--topic", klamm_topic, "--to-earliest", "--execute")
    assert rows(klamm("group", "describe", "readers").stdout)[1][3] == "0"
    klamm("group", "reset", "readers", "--all-topics", "--shift-by", "100", "--execute")
    assert rows(klamm("group", "describe", "readers").stdout)[1][3] == "3"
    assert klamm("group", "delete", "readers").stdout == "Deleted group readers.\n"
    assert "readers" not in klamm("group", "list").stdout


def test_a_group_continues_in_partitions_it_has_not_read(klamm: Run) -> None:
    klamm("topic", "create", "spread", "--partitions", "3")
    for partition in range(3):
        klamm("produce", "spread", "-p", str(partition), stdin=f"{partition}a\n{partition}b\n")
    first = klamm("consume", "spread", "-g", "spread-readers", "--from-beginning", "-n", "1").stdout
    described = rows(klamm("group", "describe", "spread-readers").stdout)[1:]
    assert [row[2] for row in described] == ["0", "1", "2"] and sorted(row[3] for row in described) == ["0", "0", "1"]
    second = klamm("consume", "spread", "-g", "spread-readers", "-e").stdout
    assert sorted((first + second).split()) == ["0a", "0b", "1a", "1b", "2a", "2b"]
    klamm("topic", "delete", "spread")


def test_a_group_reads_one_partition(klamm: Run) -> None:
    klamm("topic", "create", "single", "--partitions", "2")
    klamm("produce", "single", "-p", "1", stdin="a\nb\n")
    options = ("consume", "single", "-g", "single-readers", "-p", "1", "--from-beginning")
    assert klamm(*options, "-n", "1").stdout == "a\n"
    assert klamm(*options, "-n", "1").stdout == "b\n"
    described = rows(klamm("group", "describe", "single-readers").stdout)[1:]
    assert [row[2:6] for row in described] == [["0", "-", "0", "-"], ["1", "2", "2", "0"]]
    klamm("topic", "delete", "single")


def test_records_that_produce_cannot_send(klamm: Run, klamm_topic: str) -> None:
    big = klamm("produce", klamm_topic, stdin="small\n" + "x" * 2_000_000 + "\n", fails=True)
    assert big.stderr.startswith("Error: Line 2 has 2000000 bytes; the limit is 1000000, ")
    assert big.stderr.endswith(f" 1 record went to {klamm_topic}.\n") and big.stderr.count("\n") == 1
    klamm("config", "alter", "--topic", klamm_topic, "--set", "max.message.bytes=3000000")
    klamm("produce", klamm_topic, "--max-message-bytes", "3000000", stdin="x" * 2_000_000 + "\n")
    wrong = klamm("produce", klamm_topic, "-p", "7", stdin="a\n", fails=True)
    assert wrong.stderr == f"Error: Topic {klamm_topic} has no partition 7.\n"
    keyless = klamm("produce", klamm_topic, "-K", ":", stdin="a:1\nb:2\nc:3\nd\n", fails=True)
    assert keyless.stderr == f"Error: Line 4 has no key: it does not contain ':'. 3 records went to {klamm_topic}.\n"


def test_a_tab_between_key_and_value(klamm: Run, klamm_topic: str) -> None:
    klamm("produce", klamm_topic, "-K", r"\t", stdin="k\tv\n")
    assert klamm("consume", klamm_topic, "--from-beginning", "-e", "-f", "%k=%v\\n").stdout == "k=v\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_commits_and_leaves(
    klamm: Run, klamm_cluster: LocalCluster, klamm_topic: str, number: signal.Signals
) -> None:
    klamm("produce", klamm_topic, stdin="1\n2\n3\n")
    group = f"ended-by-{number.name}"
    command = [sys.executable, "-m", "klamm.cli.main", "consume", klamm_topic, "-g", group, "--from-beginning"]
    command += ["-b", klamm_cluster.bootstrap_servers]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(3)] == ["1\n", "2\n", "3\n"]
        process.send_signal(number)
        _, said = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0 and said.endswith(f" records from {klamm_topic}.\n") and said.count("\n") == 1
    assert [group, "Empty"] in rows(klamm("group", "list").stdout)
    # The signal may arrive between showing the last record and counting it: that record comes again.
    assert rows(klamm("group", "describe", group).stdout)[1][3] in ("2", "3")


def test_resets_that_are_refused(klamm: Run, klamm_cluster: LocalCluster, klamm_topic: str) -> None:
    to_start = ("-t", klamm_topic, "--to-earliest")
    unknown = klamm("group", "reset", "no-such-group", *to_start, fails=True)
    assert unknown.stderr == "Error: There is no consumer group no-such-group.\n"
    klamm("produce", klamm_topic, stdin="1\n2\n3\n")
    klamm("consume", klamm_topic, "-g", "resets", "--from-beginning", "-e")
    for text, number in (("abc", "'abc'"), ("0,", "''"), ("", "''")):
        bad = klamm("group", "reset", "resets", "-t", f"{klamm_topic}:{text}", "--to-latest", fails=True)
        assert bad.stderr == f"Error: {number} is not a partition number.\n"
    cut = klamm("group", "reset", "resets", "-t", f"{klamm_topic}:0", "--to-offset", "99", "--execute")
    assert cut.stderr == f"{klamm_topic}-0: there is no offset 99, it has 0 to 3; using 3.\n"
    klamm("group", "reset", "resets", *to_start, "--execute")
    command = [sys.executable, "-m", "klamm.cli.main", "consume", klamm_topic, "-g", "resets"]
    command += ["-b", klamm_cluster.bootstrap_servers]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "1\n"
        busy = klamm("group", "reset", "resets", *to_start, "--execute", fails=True)
        process.terminate()
        process.communicate(timeout=WAIT_S)
    assert busy.stderr == "Error: Group resets has members; stop them first.\n"


def test_a_group_is_left_when_the_reader_of_the_output_has_gone(
    klamm: Run, klamm_cluster: LocalCluster, klamm_topic: str
) -> None:
    klamm("produce", klamm_topic, stdin="1\n2\n3\n")
    for arguments in (["topic", "list"], ["consume", klamm_topic, "-g", "unheard", "--from-beginning"]):
        reader, writer = os.pipe()
        os.close(reader)
        command = [sys.executable, "-m", "klamm.cli.main", *arguments, "-b", klamm_cluster.bootstrap_servers]
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, timeout=WAIT_S)
        os.close(writer)
        assert (done.returncode, done.stderr) == (0, b"")
    assert ["unheard", "Empty"] in rows(klamm("group", "list").stdout)
    assert rows(klamm("group", "describe", "unheard").stdout)[1][3] == "0"


def test_configs(klamm: Run, klamm_topic: str) -> None:
    klamm("config", "alter", "--topic", klamm_topic, "--set", "retention.ms=5000", "--set", "cleanup.policy=compact")
    described = rows(klamm("config", "describe", "--topic", klamm_topic).stdout)
    assert ["retention.ms", "5000", "DYNAMIC_TOPIC_CONFIG", "false"] in described
    klamm("config", "alter", "--topic", klamm_topic, "--delete", "retention.ms")
    everything = rows(klamm("config", "describe", "--topic", klamm_topic, "--all").stdout)
    assert ["retention.ms", "604800000", "DEFAULT_CONFIG", "false"] in everything
    bad = klamm("config", "alter", "--topic", klamm_topic, "--set", "retention.ms=soon", fails=True)
    assert "INVALID_CONFIG" in bad.stderr and "whole number" in bad.stderr


def test_configurations_that_are_not_there(klamm: Run, klamm_topic: str) -> None:
    for arguments in (["describe"], ["alter", "--set", "num.io.threads=9"]):
        for broker in ("9", "x"):
            done = klamm("config", *arguments, "--broker", broker, fails=True)
            assert done.stderr == f"Error: There is no broker {broker}; brokers are 1.\n"
    delete = ("config", "alter", "--delete", "foo")
    assert klamm(*delete, "-t", klamm_topic, fails=True).stderr == "Error: foo is not a topic configuration.\n"
    assert klamm(*delete, "--broker", "1", fails=True).stderr == "Error: foo is not a broker configuration.\n"
    assert klamm(*delete, "--broker-defaults", fails=True).stderr == "Error: foo is not a broker configuration.\n"
    done = klamm("topic", "alter", klamm_topic, "--delete-config", "foo", fails=True)
    assert done.stderr == "Error: foo is not a topic configuration.\n"


def test_a_changed_topic_config_holds_for_the_live_log(klamm: Run, klamm_topic: str) -> None:
    klamm("produce", klamm_topic, stdin="x" * 500 + "\n")
    klamm("config", "alter", "--topic", klamm_topic, "--set", "max.message.bytes=200")
    refused = klamm("produce", klamm_topic, stdin="x" * 500 + "\n", fails=True)
    assert refused.stderr.startswith("Error: A record was not accepted: MSG_SIZE_TOO_LARGE")
    klamm("config", "alter", "--topic", klamm_topic, "--delete", "max.message.bytes")
    klamm("produce", klamm_topic, stdin="x" * 500 + "\n")


def test_broker_configs(klamm: Run, klamm_cluster: LocalCluster) -> None:
    klamm("config", "alter", "--broker", "1", "--set", "num.io.threads=16")
    described = rows(klamm("config", "describe", "--broker", "1").stdout)
    assert ["num.io.threads", "16", "DYNAMIC_BROKER_CONFIG", "false"] in described
    too_much = klamm("config", "alter", "--broker", "1", "--set", "num.io.threads=33", fails=True)
    assert "from 8 to 32" in too_much.stderr
    klamm("config", "alter", "--broker-defaults", "--set", "log.segment.bytes=1048576")
    defaults = rows(klamm("config", "describe", "--broker-defaults").stdout)
    assert defaults[1:] == [["log.segment.bytes", "1048576", "DYNAMIC_DEFAULT_BROKER_CONFIG", "false"]]
    klamm_cluster.stop(1)
    klamm_cluster.start(1)
    assert ["num.io.threads", "16", "DYNAMIC_BROKER_CONFIG", "false"] in rows(
        klamm("config", "describe", "--broker", "1").stdout
    )
    klamm("config", "alter", "--broker", "1", "--delete", "num.io.threads")
    klamm("config", "alter", "--broker-defaults", "--delete", "log.segment.bytes")


def test_a_key_without_effect_is_reported(klamm: Run, klamm_topic: str) -> None:
    for target in (("--broker", "1"), ("--broker-defaults",)):
        done = klamm("config", "alter", *target, "--set", "num.network.threads=4", "--set", "num.io.threads=9")
        assert done.stdout.startswith("Changed the configuration of broker ")
        (warning,) = done.stderr.splitlines()
        assert warning == "Warning: num.network.threads has no effect in klamm: docs/reference/configuration.md"
        done = klamm("config", "alter", *target, "--delete", "num.network.threads", "--delete", "num.io.threads")
        assert done.stderr == ""
    expected = "Warning: local.retention.ms has no effect in klamm: docs/reference/configuration.md\n"
    done = klamm(
        "config", "alter", "--topic", klamm_topic, "--set", "local.retention.ms=1000", "--set", "flush.ms=9000"
    )
    assert done.stderr == expected
    done = klamm("topic", "alter", klamm_topic, "--config", "local.retention.ms=2000", "--config", "flush.ms=9000")
    assert done.stderr == expected
    done = klamm("topic", "create", f"{klamm_topic}-2", "--config", "local.retention.ms=1000")
    assert done.stderr == expected
    klamm("topic", "delete", f"{klamm_topic}-2")


class Up:
    """`klamm up` as a person runs it."""

    def __init__(self, data_dir: Path) -> None:
        command = [sys.executable, "-m", "klamm.cli.main", "up", "--data-dir", str(data_dir), "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def __enter__(self) -> Up:
        assert self.process.stdout is not None
        self.servers = self.process.stdout.readline().removeprefix("bootstrap servers ").strip()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.returncode is None:
            self.process.kill()
            self.process.communicate()

    def stop(self, number: signal.Signals) -> str:
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=WAIT_S)
        assert self.process.returncode == 0, said
        return said


def run(servers: str, *arguments: str, stdin: str = "") -> str:
    env = {**os.environ, "KLAMM_BOOTSTRAP_SERVERS": servers}
    command = [sys.executable, "-m", "klamm.cli.main", *arguments]
    done = subprocess.run(command, env=env, input=stdin, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "data"


def test_up_keeps_data_and_refuses_a_second_one(data_dir: Path) -> None:
    with Up(data_dir) as up:
        run(up.servers, "topic", "create", "kept")
        run(up.servers, "produce", "kept", stdin="hello\n")
        command = [sys.executable, "-m", "klamm.cli.main", "up", "--data-dir", str(data_dir)]
        second = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
        assert second.returncode == 1
        assert f"is in use by another klamm (process {up.process.pid})" in second.stderr
        assert "Stopped; the data stays in" in up.stop(signal.SIGTERM)
    with Up(data_dir) as up:
        assert run(up.servers, "consume", "kept", "--from-beginning", "-e") == "hello\n"
        up.stop(signal.SIGINT)


def test_up_with_a_port_in_use(data_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        command = [sys.executable, "-m", "klamm.cli.main", "up", "--data-dir", str(data_dir), "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 1
    assert done.stderr == f"Error: Port {port} cannot be used: Address already in use. Choose another one.\n"


@pytest.mark.parametrize("with_spark", [False, pytest.param(True, marks=pytest.mark.long)])
def test_demo(with_spark: bool, tmp_path: Path) -> None:
    # A machine without Java: the demo leaves out its part with Spark.
    env = dict(os.environ) if with_spark else {**os.environ, "PATH": str(tmp_path), "JAVA_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-m", "klamm.cli.main", "demo"], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert "failover" in done.stdout
    assert "came back exactly once, across the kill" in done.stdout
    assert "in sync: [1, 2, 3]" in done.stdout
    assert ("The Spark part is left out: it needs Java 17" in done.stdout) == (not with_spark)
