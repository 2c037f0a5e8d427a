"""`klamm partition`: what is refused before any broker is asked, and Kafka's file."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from klamm.cli.app import app
from klamm.cli.controller import reason
from klamm.cli.output import Failure
from klamm.cli.reassignment_file import read_log_dirs, read_targets
from klamm.model import TopicPartition

SAY_WHAT = "Pass --topic, --partition and --replicas, or --file, or --list, or --cancel with --topic."


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ("reassign", SAY_WHAT),
        ("reassign --topic t --partition 0", SAY_WHAT),
        ("reassign --topic t --replicas 1", SAY_WHAT),
        ("reassign --cancel", SAY_WHAT),
        ("reassign --wait", SAY_WHAT),
        ("reassign --partition 0 --replicas 1", "--partition requires --topic."),
        ("reassign --file f --topic t", "--file cannot be combined with --topic, --partition or --replicas."),
        ("reassign --json --cancel --topic t", "--json requires --list."),
        ("reassign --list --wait", "--list cannot be combined with --replicas, --file, --cancel or --wait."),
        (
            "reassign -t t -p 0 --cancel --replicas 1",
            "--cancel cannot be combined with --replicas.",
        ),
        ("reassign -t t -p 0 --replicas 1,x", "--replicas '1,x': expected the numbers of brokers, as in 1,2,3."),
        ("elect", "Pass --preferred or --unclean."),
        ("elect --preferred --unclean", "Pass --preferred or --unclean."),
        ("elect --preferred --partition 1", "--partition requires --topic."),
        ("elect --unclean", "An unclean election may lose records: pass --topic, or --all-topics for every topic."),
        ("elect --preferred --topic t --all-topics", "Pass either --topic or --all-topics, not both."),
    ],
)
def test_refused_arguments(options: str, reported: str) -> None:
    done = CliRunner().invoke(app, ["partition", *options.split()])
    assert done.exit_code == 1 and isinstance(done.exception, Failure)
    assert str(done.exception) == reported


def test_kafkas_file(tmp_path: Path) -> None:
    path = tmp_path / "moves.json"
    path.write_text(
        '{"version":1,"partitions":[{"topic":"a","partition":0,"replicas":[1,2],"log_dirs":["any","any"]},'
        '{"topic":"a","partition":1,"replicas":[2]}]}'
    )
    assert read_targets(path) == {TopicPartition("a", 0): [1, 2], TopicPartition("a", 1): [2]}


def test_directories_in_kafkas_file(tmp_path: Path) -> None:
    path = tmp_path / "moves.json"
    path.write_text('{"partitions":[{"topic":"a","partition":0,"replicas":[1,2,3],"log_dirs":["any","/d","/e"]}]}')
    assert read_targets(path) == {TopicPartition("a", 0): [1, 2, 3]}
    assert read_log_dirs(path) == {(TopicPartition("a", 0), 2): "/d", (TopicPartition("a", 0), 3): "/e"}


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("", ' is empty: expected {"version": 1, '),
        (" \n", ' is empty: expected {"version": 1, '),
        ("{", "is not JSON: "),
        ("[]", ': expected {"version": 1, '),
        ('{"partitions": 1}', ': expected {"version": 1, '),
        ('{"partitions": []}', " names no partition."),
        ('{"version": 2, "partitions": []}', " has version 2: only version 1 is known."),
        ('{"partitions": [7]}', ", not 7."),
        ('{"partitions": [{"topic": "t", "partition": 0}]}', ', not {"topic": "t", "partition": 0}.'),
        (
            '{"partitions": [{"topic": "t", "partition": "0", "replicas": [1]}]}',
            ', not {"topic": "t", "partition": "0"',
        ),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": [true]}]}', ', not {"topic": "t", "partition": 0'),
        (
            '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1], "log_dirs": ["d"]}]}',
            ': log_dirs of t-0 must name "any" or an absolute path for every replica.',
        ),
        (
            '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2], "log_dirs": ["/d"]}]}',
            ': log_dirs of t-0 must name "any" or an absolute path for every replica.',
        ),
        (
            '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1]},'
            '{"topic": "t", "partition": 0, "replicas": [2]}]}',
            " names partition t-0 twice.",
        ),
    ],
)
def test_a_file_that_is_not_kafkas(text: str, reported: str, tmp_path: Path) -> None:
    path = tmp_path / "moves.json"
    path.write_text(text)
    with pytest.raises(Failure) as failed:
        read_targets(path)
    assert str(failed.value).startswith(str(path)) and reported in str(failed.value)


def test_no_broker_answers() -> None:
    done = CliRunner().invoke(app, ["partition", "reassign", "--list", "-b", "127.0.0.1:1"])
    assert done.exit_code == 1
    assert str(done.exception).startswith("No broker answers at 127.0.0.1:1.")


def test_reasons() -> None:
    assert reason(85, "No move.") == "NO_REASSIGNMENT_IN_PROGRESS: No move."
    assert reason(85, "No move") == "NO_REASSIGNMENT_IN_PROGRESS: No move."
    assert reason(85, None) == "NO_REASSIGNMENT_IN_PROGRESS."
    assert reason(32_000, None) == "error 32000."


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "moves.json"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(Failure) as failed:
        read_targets(path)
    assert str(failed.value) == f"{path} is not UTF-8: invalid start byte at byte 0."
