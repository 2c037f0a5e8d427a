"""Which tables a query names."""

from __future__ import annotations

from pathlib import Path

import pytest

from klamm.errors import KlammError
from klamm.spark.sql.parser import parsed_tables
from klamm.spark.sql.table_names import SqlTextError, relations, renamed, statements
from klamm.spark.sql.topic_tables import refuse_files_of_tables


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("select * from orders", ["orders"]),
        ("SELECT o.id FROM orders o JOIN payments p ON o.id = p.order_id", ["orders", "payments"]),
        ("select * from a, b as c, `d-e.f` where x in (select y from g)", ["a", "b", "d-e.f", "g"]),
        ("with big as (select * from orders), n(x) as (select 1) select * from big join n", ["orders"]),
        ("with orders as (select * from orders where x > 1) select * from orders", ["orders"]),
        ("with a as (select * from b), b as (select * from a) select * from b", ["b"]),
        ("with recursive r as (select 1 as n union all select n + 1 from r) select * from r", []),
        ("select * from t join (with t as (select * from u) select * from t) x on true", ["t", "u"]),
        ("select * from (with t as (select * from u) select * from t) x, t", ["u", "t"]),
        ("select r'\\', R\"\\\", x from t", ["t"]),
        ("select extract(year from at), trim(both 'x' from name) from users", ["users"]),
        ("select a is not distinct from b from t", ["t"]),
        ("select * from range(10) r join t on r.id = t.id", ["t"]),
        ("select * from values (1, 2) as v(a, b), t", ["t"]),
        ("select k, v from t lateral view explode(m) x as k, v where k > 1", ["t"]),
        ("select * from (a join b using (id, at)) c", ["a", "b"]),
        ("select * from (select * from inner_t) s, other", ["inner_t", "other"]),
        ("select 'from x', \"join y\" -- from z\n/* from w */ from t", ["t"]),
        ("select 1", []),
        ("from t select a", ["t"]),
        ("select * from t tablesample (10 percent) order by a, b", ["t"]),
        ("select * from a union all select * from a", ["a"]),
        ("select * from db.t", ["db.t"]),
        ("select * from parquet.`dir/file`", ["parquet.dir/file"]),
        ("describe orders", ["orders"]),
        ("explain select * from orders", ["orders"]),
        ("select count(distinct x) from t where exists (select 1 from u where u.id = t.id)", ["t", "u"]),
        ("select case when a then b end as `from` from `select`", ["select"]),
        ("select /* a /* b */ from c */ 1 from t", ["t"]),
        ("select /*+ broadcast(b) */ * from a join b", ["a", "b"]),
        ("select 1 /* /*+ from x */ from t /**/", ["t"]),
        ("select * from stream", ["stream"]),
        ("select * from stream where x = 1", ["stream"]),
        ("select * from stream s, lateral as l, only o join `stream` using (id)", ["s", "lateral", "only", "stream"]),
        ("select * from stream(t), stream u", ["t", "u"]),
        ("select * from t, lateral (select * from u)", ["t", "u"]),
        ("select * from values", ["values"]),
        ("select * from (select) join from on true", ["select", "from"]),
        ("select * from order join group on true where exists (select 1 from offset)", ["order", "group", "offset"]),
        ("describe table", ["table"]),
        ("describe table extended", ["extended"]),
        ("select * from 2nd_topic join t", ["2nd_topic", "t"]),
        ("select * from values 1, 2L, 3e5, 4bd", []),
        ("select * from `a.b-c`.`d`, `x``y`", ["a.b-c.d", "x`y"]),
        ("select m from (select window.start as m, page from clicks) x", ["clicks"]),
        ("select * from (select offset, limit from a) join (select order from b) on true", ["a", "b"]),
        ("select n from (select window.start, count(*) n from c group by window(at, '1 minute'))", ["c"]),
        ("select sum(x) over w from t window w as (partition by y)", ["t"]),
        ("select * from a left semi join b on a.x <=> b.x anti join c using (id)", ["a", "b", "c"]),
        ("select k from t group by window(at, '1 minute'), k having count(*) > (select max(n) from u)", ["t", "u"]),
    ],
)
@pytest.mark.parametrize("by_words", [False, True])
def test_tables_of_a_query(sql: str, names: list[str], by_words: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the parser, and by words alone, which is the fallback for text that the parser does not understand."""
    if by_words:
        monkeypatch.setattr("klamm.spark.sql.table_names.parsed_tables", lambda sql: None)
    assert [relation.name for relation in relations(sql)] == names


@pytest.mark.parametrize(
    "sql",
    [
        "select window.start from (select window.start from c group by window(at, '1 minute'))",
        "with a as (select 1), b as (select * from a join t) select transform(xs, x -> x + 1), m['k'] from b",
        "select * from t lateral view explode(xs) y as x where x rlike r'\\d' and z is not distinct from 1",
        "select max_by(a, b) filter (where c), id::int, d <=> e from t tablesample (10 percent) group by all",
    ],
)
def test_ordinary_queries_are_parsed(sql: str) -> None:
    assert parsed_tables(sql) is not None


@pytest.mark.parametrize("sql", ["describe orders", "select * from stream orders", "select (((", "", "selec 1"])
def test_other_text_is_read_by_its_words(sql: str) -> None:
    assert parsed_tables(sql) is None


def test_lines_and_files() -> None:
    found = relations("select *\nfrom a\njoin `b`\n  on a.x = b.x")
    assert [(relation.name, relation.line) for relation in found] == [("a", 2), ("b", 3)]
    assert relations("select * from csv.`x`")[0].is_file
    assert not relations("select * from db.x")[0].is_file
    assert relations("select * from Delta.`lake/shop`")[0].is_delta


def test_tables_get_other_names() -> None:
    text = "select delta.`a`, 'delta.`a`' -- delta.`a`\nfrom {} x, t join {} where 1 in (select 1 from {})"
    sql = text.format("delta.`a`", "delta . `b``c`", "Delta.`a`")
    names: dict[tuple[str, ...], str] = {("delta", "a"): "v1", ("delta", "b`c"): "v2", ("Delta", "a"): "v1"}
    assert renamed(sql, names) == text.format("`v1`", "`v2`", "`v1`")
    assert renamed("from delta.`a`", {("delta", "a"): "v"}) == "from `v`"
    assert renamed(sql, {}) == sql


def test_files_of_a_delta_table_are_not_read_as_parquet(tmp_path: Path) -> None:
    (tmp_path / "shop" / "_delta_log").mkdir(parents=True)
    (tmp_path / "shop" / "part-0.parquet").touch()
    for place in ("shop", "shop/", "shop/*.parquet", "shop/_date=2025-01-02"):
        for path in (f"{tmp_path}/{place}", f"file://{tmp_path}/{place}"):
            with pytest.raises(KlammError, match=f"{tmp_path}/shop is a Delta table, .*: use delta.`{tmp_path}/shop`"):
                refuse_files_of_tables(relations(f"select * from Parquet.`{path}`"))
    for name in (f"parquet.`{tmp_path}`", f"parquet.`{tmp_path}/shop/part-0.parquet`", f"text.`{tmp_path}/shop`"):
        refuse_files_of_tables(relations(f"select * from {name}"))


@pytest.mark.parametrize(
    ("sql", "line", "reason"),
    [
        ("select 'a\nfrom t", 1, "string"),
        ("select *\nfrom `t", 2, "name"),
        ("select (1\nfrom t", 1, "never closed"),
        ("select 1)", 1, "unmatched closing"),
        ("select 1 /* x", 1, "comment"),
        ("select 1\n/* /* x */ from t", 2, "comment"),
    ],
)
def test_text_that_cannot_be_a_query(sql: str, line: int, reason: str) -> None:
    with pytest.raises(SqlTextError, match=reason) as caught:
        relations(sql)
    assert caught.value.line == line


def test_statements_end_with_a_semicolon_outside_strings() -> None:
    assert statements("select ';'; select 2 -- ; \n; sel") == (["select ';'", "select 2 -- ;"], " sel")
    assert statements("") == ([], "")
    assert statements("a /* ; /* ; */ ; */ b; c /* ;\n;") == (["a /* ; /* ; */ ; */ b"], " c /* ;\n;")
    assert statements("select 'it;\nis; open") == ([], "select 'it;\nis; open")
    assert statements("select `x;") == ([], "select `x;")
