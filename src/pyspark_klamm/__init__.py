"""Found by Spark by its name: every `pyspark_*` module with a `DefaultSource` is registered when a session starts."""

from __future__ import annotations

from klamm.spark.data_source import KlammDataSource as DefaultSource

__all__ = ["DefaultSource"]
