"""Pipelines: topics in, SQL or functions, topics and tables out, described in YAML or in Python.

    from klamm.spark.pipeline import Pipeline

    pipeline = Pipeline("orders", checkpoint="checkpoints/orders")
    pipeline.source("orders", schema="id long, amount double, at timestamp", watermark=("at", "10 minutes"))

    @pipeline.view
    def large(orders):
        return orders.where("amount > 1000")

    pipeline.sink("large_orders", "large", topic="large-orders", key="id")

Nothing here needs Spark: a file is read and checked before a JVM starts.
"""

from __future__ import annotations

from klamm.spark.pipeline.builder import Pipeline
from klamm.spark.pipeline.pipeline_problems import PipelineError

__all__ = ["Pipeline", "PipelineError"]
