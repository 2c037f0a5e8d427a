"""The command as a process: help, sentences instead of tracebacks, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from klamm.cli.app import app
from klamm.cli.client import sentence
from klamm.cli.doctor import State, check_data_dir, check_disk, check_port
from klamm.cli.output import Failure
from klamm.cli.up import DirectoryLock
from klamm.local.ports import ReservedPort
from klamm.protocol.record_batch import Record, build_batch
from tests.support.forked_command import run_klamm as klamm


@pytest.mark.parametrize(
    "command", ["", "up", "broker", "topic", "group", "produce", "consume", "config", "log", "zk", "doctor"]
)
def test_help(command: str) -> None:
    done = klamm(*command.split(), "--help")
    assert done.returncode == 0 and "Usage" in done.stdout and "\x1b" not in done.stdout


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("produce", "--key-separator --compression --acks --null-marker --max-message-bytes --bootstrap-server"),
        ("consume", "--from-beginning --max-messages --exit-at-end --isolation-level read_uncommitted"),
        ("group reset", "--to-earliest --to-latest --to-offset --to-datetime --shift-by --bootstrap-server"),
        ("topic describe", "--under-replicated-partitions --bootstrap-server"),
        ("topic create", "--replication-factor --if-not-exists"),
        ("config alter", "--broker-defaults --bootstrap-server"),
    ],
)
def test_help_is_whole_on_a_narrow_terminal(command: str, names: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = klamm(*command.split(), "--help").stdout
    assert all(name in text for name in names.split()) and "…" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_every_option_has_a_help_text() -> None:
    from typer.main import get_command

    def options(command: Any, path: str) -> Iterator[tuple[str, Any]]:
        for name, inner in getattr(command, "commands", {}).items():
            yield from options(inner, f"{path} {name}")
        yield from ((f"{path} {each.name}", each) for each in command.params if each.param_type_name == "option")

    assert [name for name, option in options(get_command(app), "klamm") if not option.help] == []


def into_closed_pipe(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [sys.executable, "-m", "klamm.cli.main", *arguments]
        return subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, timeout=100)
    finally:
        os.close(writer)


@pytest.mark.parametrize("arguments", ["--help", "--version", "topic --help", "doctor"])
def test_a_reader_that_has_gone(arguments: str) -> None:
    done = into_closed_pipe(*arguments.split())
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_interrupt_during_the_imports() -> None:
    code = """
import sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
from klamm.cli.main import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_version() -> None:
    assert klamm("--version").stdout.startswith("klamm 0.")


@pytest.mark.parametrize("arguments", ["topic list", "group list", "config describe --topic t", "consume t"])
def test_no_broker_is_one_sentence(arguments: str) -> None:
    with ReservedPort() as nobody:
        done = klamm(*arguments.split(), "--bootstrap-server", f"127.0.0.1:{nobody.number}")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("Error: No broker answers at 127.0.0.1:")
    assert "klamm up" in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_wrong_config_file(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text("[num]\n'io.thread' = 3\n")
    done = klamm("broker", "--config", str(path))
    assert done.returncode == 1
    assert done.stderr == (
        f"Error: {path}:2: num.io.thread is not a configuration key: expected one of Kafka's broker keys. "
        "Did you mean num.io.threads or num.network.threads?\n"
    )


def test_a_wrong_setting_of_up(tmp_path: Path) -> None:
    done = klamm("up", "--data-dir", str(tmp_path), "--config", "num.partitions=none")
    assert done.returncode == 1
    assert done.stderr == "Error: --config: num.partitions cannot be 'none': expected a whole number of 32 bits.\n"


def test_config_describe_requires_exactly_one_resource() -> None:
    done = klamm("config", "describe")
    assert done.returncode == 1 and "exactly one of --topic NAME, --broker ID, --broker-defaults" in done.stderr


@pytest.mark.parametrize("name", ["über", "bad topic", "", "..", "x" * 250])
def test_a_wrong_topic_name(name: str) -> None:
    done = klamm("produce", name)
    assert done.returncode == 1 and done.stderr.startswith(f"Error: {name!r} is not a topic name: ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["produce", "t", "-K", ""], "--key-separator cannot be empty."),
        (["consume", "t", "-g", ""], "--group cannot be empty."),
        (["topic", "delete", "t", ""], "A topic's name cannot be empty."),
    ],
)
def test_arguments_that_cannot_be_empty(arguments: list[str], said: str) -> None:
    done = klamm(*arguments)
    assert (done.returncode, done.stderr) == (1, f"Error: {said}\n")


@pytest.mark.parametrize(
    "arguments", ["consume t --isolation-level foo", "topic create t --partitions 100000000", "up -p 70000"]
)
def test_a_value_out_of_range_is_a_usage_error(arguments: str) -> None:
    done = klamm(*arguments.split())
    assert done.returncode == 2 and "Invalid value for" in done.stderr and "Traceback" not in done.stderr


def test_ports_of_up_end(tmp_path: Path) -> None:
    done = klamm("up", "-p", "65535", "-n", "2", "-d", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr == "Error: The ports of 2 brokers from 65535 on end after 65535. Choose a lower --port.\n"


def test_errors_that_leave_a_command_are_sentences() -> None:
    from confluent_kafka import KafkaError, KafkaException

    assert sentence(KafkaException(KafkaError(17, "bad"))) == "TOPIC_EXCEPTION: bad."
    assert sentence(ValueError("no such thing")) == "no such thing."
    assert sentence(FileNotFoundError(2, "No such file", "f")) == "f: No such file."
    assert sentence(Failure("Told.")) == "Told."
    assert sentence(AssertionError()) is None


def test_a_data_directory_has_one_owner(tmp_path: Path) -> None:
    with DirectoryLock(tmp_path), pytest.raises(Failure, match="is in use by another klamm"):
        DirectoryLock(tmp_path).__enter__()
    with DirectoryLock(tmp_path):
        pass


def test_doctor_as_json(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["doctor", "--json", "--data-dir", str(tmp_path)])
    findings = json.loads(done.stdout)
    assert {finding["state"] for finding in findings} <= {"ok", "warning", "failed"}
    assert {"what", "state", "found", "advice"} == findings[0].keys() and len(findings) > 5
    assert done.exit_code == any(finding["state"] == "failed" for finding in findings)


def test_doctor_findings(tmp_path: Path) -> None:
    with ReservedPort() as port:
        assert check_port(port.number).state is State.OK
    assert check_disk(tmp_path / "not" / "there").state in (State.OK, State.WARNING)


def test_doctor_reports_a_directory_that_is_in_use(tmp_path: Path) -> None:
    assert check_data_dir(tmp_path / "new").state is State.OK and not (tmp_path / "new").exists()
    with DirectoryLock(tmp_path):
        finding = check_data_dir(tmp_path)
        assert finding.state is State.WARNING
        assert finding.found == f"{tmp_path} is in use by another klamm (process {os.getpid()})"
    assert check_data_dir(tmp_path).state is State.OK


def test_doctor_reports_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert check_disk(tmp_path / "file" / "data").found == f"{tmp_path / 'file'} is not a directory"
    kernel = Path("/proc/self")
    assert check_disk(kernel / "data").state is State.FAILED
    done = klamm("doctor", "-d", str(tmp_path / "file"))
    assert done.returncode == 1 and f"{tmp_path / 'file'} is not a directory" in done.stdout
    assert "checks failed" in done.stderr and list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_log_dump(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    batch = build_batch([Record(0, 1700, b"k", b"v"), Record(1, 1701, None, None)])
    path.write_bytes(batch)
    done = klamm("log", "dump", str(path), "--records")
    assert done.returncode == 0, done.stderr
    first, *records = done.stdout.splitlines()
    assert first.startswith("position: 0 baseOffset: 0 lastOffset: 1 count: 2 ") and first.endswith("isvalid: true")
    assert [line.split(" headers")[0] for line in records] == [
        "| offset: 0 timestamp: 1700 key: k value: v",
        "| offset: 1 timestamp: 1701 key: null value: null",
    ]


def test_log_dump_as_json(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    first = build_batch([Record(0, 1700, b"k", b"v", [("h", b"\xff"), ("n", None)])])
    path.write_bytes(bytes(first) + bytes(build_batch([Record(1, 1701, None, b"")], base_offset=1)))
    done = klamm("log", "dump", str(path), "--json", "--records")
    assert done.returncode == 0, done.stderr
    one, two = map(json.loads, done.stdout.splitlines())
    assert (one["base_offset"], one["count"], one["is_valid"], one["compression"]) == (0, 1, True, "none")
    assert one["records"] == [
        {"offset": 0, "timestamp": 1700, "key": "k", "value": "v", "headers": [["h", "\\xff"], ["n", None]]}
    ]
    assert (two["position"], two["base_offset"]) == (one["size"], 1)
    assert (two["records"][0]["key"], two["records"][0]["value"]) == (None, "")
    done = klamm("log", "dump", str(path), "--json")
    assert "records" not in json.loads(done.stdout.splitlines()[0])


def test_log_dump_names_the_damage(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(bytes(build_batch([Record(0, 1700, b"k", b"v")]))[:-3])
    done = klamm("log", "dump", str(path))
    assert done.returncode == 1 and "ends inside a batch" in done.stderr
