"""Topics as DataFrames: klamm for PySpark. `import klamm.spark as ks` loads nothing of Spark before it is used.

ks.session()                     a SparkSession with klamm's settings
ks.topic(spark, "orders", ...)   a topic as a DataFrame, raw or typed
ks.to_topic(df, ...)             a streaming query into a topic
ks.to_table(df, ...)             a streaming query into a Delta table, exactly once
ks.table(spark, path)            the table back as a DataFrame
ks.watch(query)                  its progress on the terminal
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from klamm.spark.cluster.session import session as session
    from klamm.spark.cluster.session import settings as settings
    from klamm.spark.dataframes import to_topic as to_topic
    from klamm.spark.dataframes import topic as topic
    from klamm.spark.query.group_lag import commit_group_offsets as commit_group_offsets
    from klamm.spark.query.watch import watch as watch
    from klamm.spark.tables.read import table as table
    from klamm.spark.tables.write import register_tables as register_tables
    from klamm.spark.tables.write import to_table as to_table

_HOME: Final = {
    "commit_group_offsets": "klamm.spark.query.group_lag",
    "register_tables": "klamm.spark.tables.write",
    "session": "klamm.spark.cluster.session",
    "settings": "klamm.spark.cluster.session",
    "table": "klamm.spark.tables.read",
    "to_table": "klamm.spark.tables.write",
    "to_topic": "klamm.spark.dataframes",
    "topic": "klamm.spark.dataframes",
    "watch": "klamm.spark.query.watch",
}
"""The module of each public name."""


def __getattr__(name: str) -> Any:
    if (home := _HOME.get(name)) is None:
        raise AttributeError(f"module 'klamm.spark' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(_HOME)
