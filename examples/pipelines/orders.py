"""Orders and their payments: joined within a quarter of an hour, duplicates left out, and a rule against fraud.

    klamm topic create orders payments fraud-alerts --partitions 3
    klamm pipeline run examples/pipelines/orders.py --watch

An order is {"id": 1, "customer": "eva", "amount": 12.5, "at": "2026-07-01T10:00:00Z"}, a payment is
{"order_id": 1, "card": "4711", "at": "2026-07-01T10:00:05Z"}. Producers that retry may send an order twice. A record
that is neither is a row of nulls with a reason in `_error`: it is left out here, as is an order that lacks a field.
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
TTL_MS = 24 * 60 * 60 * 1000

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
    order, payment = orders.where("_error IS NULL").alias("o"), payments.where("_error IS NULL").alias("p")
    in_time = F.expr("o.id = p.order_id AND p.at BETWEEN o.at AND o.at + INTERVAL 15 MINUTES")
    return order.join(payment, in_time).select("id", "customer", "amount", "card", F.col("o.at").alias("ordered_at"))


class TestPurchase(StatefulProcessor):
    """A thief tries a card with something small, then buys something large: remembers a customer's last small order.

    For a day, in the time of the orders: a timer of each small order removes it when the watermark has passed its end,
    so the state holds the customers of a day and not all that there ever were.
    """

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._small = handle.getValueState("small", "id long, at_ms long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        for row in sorted(rows, key=lambda row: row["at_ms"]):
            before = self._small.get() if self._small.exists() else None
            is_recent = before is not None and row["at_ms"] - before[1] < TTL_MS
            if before is not None and is_recent and row["amount"] >= LARGE:
                yield Row(customer=key[0], small_id=before[0], large_id=row["id"], amount=row["amount"])
                self._small.clear()
            elif row["amount"] <= SMALL:
                self._small.update((row["id"], row["at_ms"]))
                self._handle.registerTimer(row["at_ms"] + TTL_MS)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        # A newer small order has its own timer.
        small = self._small.get() if self._small.exists() else None
        if small is not None and small[1] + TTL_MS <= expiredTimerInfo.getExpiryTimeInMs():
            self._small.clear()
        return iter(())

    def close(self) -> None:
        pass


@pipeline.view
def suspicious(orders: DataFrame) -> DataFrame:
    # The rule compares: an order without customer, amount or time is nothing that it could judge.
    whole = orders.where("_error IS NULL").dropna(subset=["id", "customer", "amount", "at"])
    timed = whole.withColumn("at_ms", F.unix_millis("at"))
    return timed.groupBy("customer").transformWithState(
        statefulProcessor=TestPurchase(),
        outputStructType="customer string, small_id long, large_id long, amount double",
        outputMode="Append",
        timeMode="EventTime",
    )


pipeline.sink("paid_orders", "paid_orders", table=f"{LAKE}/paid_orders")
pipeline.sink("fraud_alerts", "suspicious", topic="fraud-alerts", key="customer")
