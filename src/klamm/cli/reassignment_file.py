"""The JSON file of kafka-reassign-partitions.sh."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from klamm.cli.output import fail
from klamm.model import TopicPartition

_EXPECTED = 'expected {"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2]}, ...]}'

_ANY = "any"


def read_targets(path: Path) -> dict[TopicPartition, list[int]]:
    """Return the target replicas of each partition. Fails with the place of a format error."""
    targets: dict[TopicPartition, list[int]] = {}
    for entry in _entries(path):
        tp, replicas = _entry(path, entry)
        if tp in targets:
            fail(f"{path} names partition {tp} twice.")
        targets[tp] = replicas
    if not targets:
        fail(f"{path} names no partition.")
    return targets


def read_log_dirs(path: Path) -> dict[tuple[TopicPartition, int], str]:
    """Return the target directories by partition and broker; without replicas that may use any directory."""
    found = {}
    for entry in _entries(path):
        tp, replicas = _entry(path, entry)
        for broker_id, log_dir in zip(replicas, entry.get("log_dirs") or (), strict=False):
            if log_dir != _ANY:
                found[tp, broker_id] = log_dir
    return found


def _entries(path: Path) -> list[Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        fail(f"{path} is not UTF-8: {error.reason} at byte {error.start}.")
    if not text.strip():
        fail(f"{path} is empty: {_EXPECTED}.")
    try:
        content = json.loads(text)
    except ValueError as error:
        fail(f"{path} is not JSON: {error}.")
    if not isinstance(content, dict) or not isinstance(content.get("partitions"), list):
        fail(f"{path}: {_EXPECTED}.")
    if (version := content.get("version", 1)) != 1:
        fail(f"{path} has version {version!r}: only version 1 is known.")
    return list(content["partitions"])


def _entry(path: Path, entry: Any) -> tuple[TopicPartition, list[int]]:
    if not isinstance(entry, dict):
        fail(f"{path}: {_EXPECTED}, not {entry!r}.")
    topic, partition, replicas = entry.get("topic"), entry.get("partition"), entry.get("replicas")
    numbers = replicas if isinstance(replicas, list) else [None]
    if not isinstance(topic, str) or not all(_is_number(n) for n in (partition, *numbers)):
        fail(f"{path}: {_EXPECTED}, not {json.dumps(entry)}.")
    log_dirs = entry.get("log_dirs") or [_ANY] * len(numbers)
    if len(log_dirs) != len(numbers) or not all(_is_log_dir(log_dir) for log_dir in log_dirs):
        fail(f'{path}: log_dirs of {topic}-{partition} must name "any" or an absolute path for every replica.')
    assert isinstance(partition, int)
    return TopicPartition(topic, partition), list(numbers)


def _is_log_dir(value: object) -> bool:
    return isinstance(value, str) and (value == _ANY or value.startswith("/"))


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def parse_replicas(text: str) -> list[int]:
    """`1,2,3`"""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) < 2**31 for part in parts):
        fail(f"--replicas {text!r}: expected the numbers of brokers, as in 1,2,3.")
    return [int(part) for part in parts]
