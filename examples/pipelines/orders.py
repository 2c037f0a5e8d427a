"""Orders and their payments: joined within a quarter of an hour, duplicates left out, and a rule against fraud.

    klamm topic create orders payments fraud-alerts --partitions 3
    klamm pipeline run examples/pipelines/orders.py --watch

An order is {"id": 1, "customer": "eva", "amount": 12.5, "at": "2026-07-01T10:00:00Z"}, a payment is
{"order_id": 1, "card": "4711", "at": "2026-07-01T10:00:05Z"}. Producers that retry may send an order twice.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from klamm.spark.pipeline import Pipeline

LAKE = os.environ.get("LAKE", "lake")
SMALL, LARGE = 5.0, 500.0

pipeline = Pipeline("orders", checkpoint=os.environ.get("CHECKPOINTS", "checkpoints") + "/orders", trigger="2s")

pipeline.source(
    "orders",
    schema="id long, customer string, amount double, at timestamp",
    watermark=("at", "10 minutes"),
    deduplicate=("id",),
)
pipeline.source("payments", schema="order_id long, card string, at timestamp", watermark=("at", "10 minutes"))


@pipeline.view
def paid_orders(orders: DataFrame, payments: DataFrame) -> DataFrame:
    """Orders with the card that paid them, no later than a quarter of an hour after the order."""
    order, payment = orders.alias("o"), payments.alias("p")
    in_time = F.expr("o.id = p.order_id AND p.at BETWEEN o.at AND o.at + INTERVAL 15 MINUTES")
    return order.join(payment, in_time).select("id", "customer", "amount", "card", F.col("o.at").alias("ordered_at"))


class TestPurchase(StatefulProcessor):
    """A thief tries a card with something small, then buys something large: remembers small orders of a customer."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._small = handle.getValueState("small", "id long, amount double")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        for row in sorted(rows, key=lambda row: row["at"]):
            before = self._small.get() if self._small.exists() else None
            if before is not None and row["amount"] >= LARGE:
                yield Row(customer=key[0], small_id=before[0], large_id=row["id"], amount=row["amount"])
                self._small.clear()
            elif row["amount"] <= SMALL:
                self._small.update((row["id"], row["amount"]))

    def close(self) -> None:
        pass


@pipeline.view
def suspicious(orders: DataFrame) -> DataFrame:
    return orders.groupBy("customer").transformWithState(
        statefulProcessor=TestPurchase(),
        outputStructType="customer string, small_id long, large_id long, amount double",
        outputMode="Append",
        timeMode="None",
    )


pipeline.sink("paid_orders", "paid_orders", table=f"{LAKE}/paid_orders")
pipeline.sink("fraud_alerts", "suspicious", topic="fraud-alerts", key="customer")
