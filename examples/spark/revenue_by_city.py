"""A Spark job: total the orders of a topic per city and write the result to a Delta table.

    python examples/spark/revenue_by_city.py localhost:9092 lake/revenue

It reads the JSON topic `sales` from the beginning to its end and stops. The next run continues there.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import klamm.spark as ks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = "sales"
SCHEMA = "id long, city string, amount double"


def run(spark: SparkSession, servers: str, path: str) -> None:
    sales = ks.topic(spark, TOPIC, bootstrap_servers=servers, format="json", schema=SCHEMA, startingOffsets="earliest")
    revenue = (
        sales.where("_error IS NULL").groupBy("city").agg({"amount": "sum"}).withColumnRenamed("sum(amount)", "revenue")
    )
    query = ks.to_table(revenue, path, checkpoint=f"{path}_checkpoint", mode="complete", trigger="available_now")
    query.awaitTermination()


def main() -> None:
    servers, path = sys.argv[1:]
    spark = ks.session()
    run(spark, servers, path)
    ks.table(spark, path).orderBy("city").show()
    spark.stop()


if __name__ == "__main__":
    main()
