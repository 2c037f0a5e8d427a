"""`klamm sql` and its tables, on real topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from klamm.errors import KlammError
from klamm.spark.sql import TopicTables, as_json, as_text
from klamm.testing import LocalCluster
from tests.spark.conftest import TopicFactory
from tests.support.topics import produce_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_topics_are_tables(spark: SparkSession, cluster: LocalCluster, topic: TopicFactory) -> None:
    servers = cluster.bootstrap_servers
    orders, users, empty = topic("orders", partitions=2), topic("users.v1"), topic("empty")
    read: list[str] = []
    produce_json(
        servers,
        orders,
        [{"id": n, "user": f"u{n % 2}", "price": n * 1.5, "items": [{"sku": "a"}], "key": "mine"} for n in range(4)],
        key="user",
    )
    produce_json(servers, users, [{"name": "u0", "City": "Meran"}, {"name": "u1", "city": "Bozen"}])

    def topics() -> list[str]:
        read.append("asked")
        return [orders, users, empty]

    tables = TopicTables(spark, servers, topics)
    joined = tables.query(
        f"select u.city, sum(o.price) as total from `{orders}` o join `{users}` u on o.user = u.name "
        "where u.city is not null group by u.city order by total"
    )
    assert [tuple(row) for row in joined.collect()] == [("Meran", 3.0)], "of two fields the first names the column"
    frame = tables.query(f"select * from `{orders}` order by id limit 1")
    assert frame.columns[:5] == ["id", "user", "price", "items", "key"]
    assert frame.columns[5:] == ["_key", "value", "_topic", "_partition", "_offset", "_timestamp"]
    (row,) = frame.collect()
    assert (row["key"], row["_key"], row["items"][0]["sku"]) == ("mine", "u0", "a")
    second = as_json(tables.query(f"select id, cast(null as int) n, items from `{orders}` where id = 2"))
    assert second.collect()[0][0] == '{"id":2,"n":null,"items":[{"sku":"a"}]}'
    twice = as_text(tables.query(f"select id, id, items from `{orders}` where id = 3")).collect()
    assert [tuple(row) for row in twice] == [("3", "3", '[{"sku":"a"}]')]
    assert tables.query(f"select count(*) from `{empty}`").collect()[0][0] == 0
    assert tables.query("with n as (select 1 as x) select x from n").collect()[0][0] == 1

    tables.query(f"create or replace temporary view mine as select user from `{orders}`")
    assert tables.query("select count(*) from mine").collect()[0][0] == 4
    with pytest.raises(KlammError, match="There is no topic 'nothing'"):
        tables.query("select * from nothing")
    with pytest.raises(KlammError, match=f"goes into backticks: `{users}`"):
        tables.query(f"select * from {dotted(users)}")


def dotted(name: str) -> str:
    """`a.b` without backticks around the whole: each part for itself."""
    return ".".join(f"`{part}`" for part in name.split("."))
