"""Logs on disk: Kafka's files, byte for byte."""

from klamm.log.appending import append_as_follower, append_as_leader
from klamm.log.log import Log
from klamm.log.log_config import LogConfig
from klamm.log.log_manager import LogManager
from klamm.log.producer_state import AppendOrigin
from klamm.log.results import AppendResult, ReadResult, TimestampOffsetResult
from klamm.log.validator import RecordError

__all__ = [
    "AppendOrigin",
    "AppendResult",
    "Log",
    "LogConfig",
    "LogManager",
    "ReadResult",
    "RecordError",
    "TimestampOffsetResult",
    "append_as_follower",
    "append_as_leader",
]
