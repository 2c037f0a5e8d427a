"""The error of a command whose Spark is gone; in a module of its own, since commands are loaded without Spark."""

from __future__ import annotations

from klamm.errors import KlammError


class SparkEndedError(KlammError):
    """Spark's process is gone, and all queries with it."""
