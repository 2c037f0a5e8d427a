"""`klamm sql` and its tables, on real topics."""

from __future__ import annotations

import json
import os
import pty
import shlex
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner

from klamm.cli.app import app
from klamm.cli.sql import sql
from klamm.errors import KlammError
from klamm.spark.sql.topic_tables import TopicTables, as_json, as_text
from klamm.spark.tables.maintenance import compact
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
    with pytest.raises(KlammError, match=f"in backticks: `{users}`"):
        tables.query(f"select * from {dotted(users)}")


def test_topics_that_differ_in_case_only_and_words_of_sql(
    spark: SparkSession, cluster: LocalCluster, topic: TopicFactory
) -> None:
    lower = topic("case")
    cluster.create_topic(lower.upper(), 1, 1)
    cluster.create_topic("stream", 1, 1)
    produce_json(cluster.bootstrap_servers, "stream", [{"x": 1}])
    tables = TopicTables(spark, cluster.bootstrap_servers, lambda: [lower, lower.upper(), "stream"])
    with pytest.raises(KlammError, match="differ in case only"):
        tables.query(f"select * from `{lower}` union all select * from `{lower.upper()}`")
    for query in ("select x from stream", "select x /* a /* b */ c */ from stream where x = 1", "table stream"):
        assert tables.query(query).collect()[0]["x"] == 1
    assert tables.query("select s.x from `stream` s").collect()[0]["x"] == 1


@pytest.mark.usefixtures("_shared_session")
def test_the_query_of_the_readme(cluster: LocalCluster) -> None:
    lines = (Path(__file__).parents[3] / "README.md").read_text().splitlines()
    said = next(shlex.split(line)[1] for line in lines if line.endswith(" | klamm produce sales"))
    (query,) = [shlex.split(line)[2] for line in lines if line.startswith("klamm sql ")]
    cluster.create_topic("sales", 1, 1)
    produce_json(cluster.bootstrap_servers, "sales", [json.loads(said)])
    done = CliRunner().invoke(app, ["sql", query, "-f", "csv", "-b", cluster.bootstrap_servers], catch_exceptions=False)
    assert done.stdout == "city,total\nWien,12.5\n"


def test_a_delta_table_is_read_by_its_live_files(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "it's `a` shop"
    for number in range(3):
        write_deltalake(path, pa.table({"id": [number]}), mode="append")
    compact(path)
    tables = TopicTables(spark, "127.0.0.1:1", list)
    name = f"delta.`{str(path).replace('`', '``')}`"
    query = f"with d as (select * from {name}) select count(*) as n, sum(d.id) from d join {name} s on d.id = s.id"
    assert tuple(tables.query(query).collect()[0]) == (3, 3)
    write_deltalake(path, pa.table({"id": [3]}), mode="append")
    assert tables.query(query).collect()[0]["n"] == 4
    with pytest.raises(KlammError, match="is a Delta table"):
        tables.query(f"select * from {name.replace('delta', 'parquet', 1)}")
    with pytest.raises(KlammError, match="There is no table at"):
        tables.query("select * from delta.`none/such`")


@pytest.fixture
def _shared_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command uses the tests' session instead of one of its own."""

    @contextmanager
    def shared(master: str, app_name: str, conf: Mapping[str, str]) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr("klamm.cli.sql.spark_session", shared)


@pytest.mark.usefixtures("_shared_session")
def test_formats(cluster: LocalCluster, topic: TopicFactory) -> None:
    name, servers = topic("for.mats-1"), cluster.bootstrap_servers
    produce_json(servers, name, [{"id": n, "tags": ["a", 'b"'], "text": "x,\ny" if n else None} for n in range(3)])
    query = f"select id, tags, text from `{name}` order by id"
    expected = {
        "table": 'id  tags         text\n 0  ["a","b\\""]  -\n 1  ["a","b\\""]  x,\\ny\n',
        "json": '{"id":0,"tags":["a","b\\""],"text":null}\n{"id":1,"tags":["a","b\\""],"text":"x,\\ny"}\n',
        "csv": 'id,tags,text\n0,"[""a"",""b\\""""]",\n1,"[""a"",""b\\""""]","x,\ny"\n',
    }
    for format_, text in expected.items():
        done = CliRunner().invoke(app, ["sql", query, "-f", format_, "-n", "2", "-b", servers], catch_exceptions=False)
        reported = [line.rstrip() for line in done.stdout.splitlines()]
        assert reported == text.splitlines(), format_
        assert done.stderr == ("Only the first 2 rows; --max-rows shows more.\n" if format_ == "table" else "")


@pytest.mark.usefixtures("_shared_session")
def test_the_prompt_on_a_terminal(cluster: LocalCluster, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    name, servers = topic("prompt"), cluster.bootstrap_servers
    produce_json(servers, name, [{"id": n} for n in range(4)])
    person, terminal = pty.openpty()
    seen, trouble = "", []

    def until(text: str) -> None:
        nonlocal seen
        while text not in seen:
            seen += os.read(person, 4096).decode()
        seen = seen.partition(text)[2]

    def type_and_read() -> None:
        try:
            for typed, answer in (
                ("show topics;", name),
                ("select sum(id) as total /* ;", "   -> "),
                (f"*/ from `{name}`;", "total"),
                ("select * from nothing;", "There is no topic 'nothing'"),
                ("select no_column from range(1);", "no_column"),
                ("select count(*) + 40 as n from range(2);", "42"),
            ):
                os.write(person, f"{typed}\n".encode())
                until(f"{typed}\r\n")
                until(answer)
        except BaseException as error:
            trouble.append(error)
        finally:
            until("klamm> ")
            os.write(person, b"\x04")

    with os.fdopen(os.dup(terminal)) as keyboard, os.fdopen(terminal, "w", buffering=1) as screen:
        for name_, file in (("stdin", keyboard), ("stdout", screen), ("stderr", screen)):
            monkeypatch.setattr(sys, name_, file)
        thread = threading.Thread(target=type_and_read, daemon=True)
        thread.start()
        sql(bootstrap_server=servers)
        thread.join()
        monkeypatch.undo()
    os.close(person)
    assert not trouble, trouble


def dotted(name: str) -> str:
    """`a.b` without backticks around the whole: each part for itself."""
    return ".".join(f"`{part}`" for part in name.split("."))
