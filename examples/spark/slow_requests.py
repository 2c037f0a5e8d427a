"""A Spark job: where do requests spend their time, and which requests do they wait for?

    klamm config alter --broker-defaults -s klamm.request.trace.sample=100 -s klamm.request.trace.topic.enable=true
    python examples/spark/slow_requests.py localhost:9092

It reads the topic `__klamm_request_log` up to its end and prints two tables: the phases of each API, and the requests
that completed the waits of others.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import klamm.spark as ks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "__klamm_request_log"
CAUSE = "struct<api: string, client_id: string, broker_id: int>"
WAIT = f"struct<purgatory: string, duration_ms: double, outcome: string, key: string, `by`: {CAUSE}>"
SCHEMA = (
    "broker_id int, api string, client_id string, topic string, error string, queue_size int, total_ms double, "
    "request_queue_ms double, local_ms double, remote_ms double, response_order_ms double, response_queue_ms double, "
    f"send_ms double, waits array<{WAIT}>"
)
PHASES = """
    SELECT api, count(*) AS requests, count_if(error <> 'NONE') AS failed, max(queue_size) AS longest_queue,
           percentile(total_ms, 0.99) AS p99_ms, avg(request_queue_ms) AS request_queue_ms, avg(local_ms) AS local_ms,
           avg(remote_ms) AS remote_ms, avg(response_order_ms) AS response_order_ms,
           avg(response_queue_ms) AS response_queue_ms, avg(send_ms) AS send_ms
    FROM {requests} GROUP BY api ORDER BY p99_ms DESC
"""
WAITS = """
    SELECT api, wait.purgatory, wait.outcome, wait.by.api AS completed_by, wait.by.broker_id AS of_broker,
           count(*) AS waits, avg(wait.duration_ms) AS mean_ms, max(wait.duration_ms) AS longest_ms
    FROM (SELECT api, explode(waits) AS wait FROM {requests})
    GROUP BY ALL ORDER BY longest_ms DESC
"""


def analyse(spark: SparkSession, servers: str) -> tuple[DataFrame, DataFrame]:
    """Return the phases of each API, slowest first, and the causes that ended waits, of the same requests."""
    requests = ks.topic(spark, TOPIC, bootstrap_servers=servers, format="json", schema=SCHEMA, streaming=False)
    requests = requests.where("_error IS NULL").localCheckpoint()  # else each table reads up to an end of its own
    return spark.sql(PHASES, requests=requests), spark.sql(WAITS, requests=requests)


def main() -> None:
    (servers,) = sys.argv[1:]
    spark = ks.session()
    for table in analyse(spark, servers):
        table.show(50, truncate=False)
    spark.stop()


if __name__ == "__main__":
    main()
