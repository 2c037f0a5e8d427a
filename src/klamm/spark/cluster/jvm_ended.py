"""The error of a command whose JVM has ended. A separate module, because commands are loaded without Spark."""

from __future__ import annotations

from klamm.errors import KlammError


class SparkEndedError(KlammError):
    """Spark's process has ended, and all queries with it."""
