"""The configuration of the one broker whose turns of the loop are measured."""

from __future__ import annotations

from pathlib import Path

from klamm.config import KafkaConfig


def measured_broker(folder: str, settings: dict[str, str]) -> KafkaConfig:
    """Internal topics are small, so that creating them does not count in a measurement."""
    return KafkaConfig(
        {
            "broker.id": "1",
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(Path(folder) / "logs"),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "5",
            "transaction.state.log.num.partitions": "5",
            **settings,
        }
    )
