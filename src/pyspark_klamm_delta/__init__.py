"""The sink of tables, which Spark finds by the name of this package, like `pyspark_klamm`.

Spark runs sources that it finds and sources that a program registers in different Python processes. If it finds both,
a query needs one daemon of Python workers less, and one planner process less.
"""

from __future__ import annotations

from klamm.spark.tables.delta import DeltaTableSource as DefaultSource

__all__ = ["DefaultSource"]
