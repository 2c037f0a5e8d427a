"""Pipeline files in YAML: what is read, and what is refused with line and reason."""

from __future__ import annotations

import textwrap

import pytest

from klamm.spark.pipeline.options import reading_options
from klamm.spark.pipeline.pipeline_model import Restart, Trigger, Watermark, duration_ms
from klamm.spark.pipeline.pipeline_problems import PipelineError
from klamm.spark.pipeline.yaml_file import read_yaml

GOOD = textwrap.dedent("""\
    name: clicks
    bootstrap_servers: ${SERVERS:-localhost:9092}
    checkpoint: ${BASE}/clicks
    trigger: 5s
    restart: {attempts: 3, first_delay: 100ms}
    settings: {spark.sql.shuffle.partitions: 2, spark.ui.enabled: false}
    sources:
      clicks:
        schema: user string, page string, at timestamp
        watermark: {column: at, delay: 10 minutes}
        deduplicate: [user, at]
        options: {maxOffsetsPerTrigger: 1000, includeHeaders: true}
      users: {topic: users.v1, format: string, static: true}
    views:
      counted: |
        SELECT window(at, '1 minute') w, page, count(*) AS n
        FROM known
        GROUP BY 1, 2
      known:
        sql: SELECT clicks.* FROM Clicks JOIN users ON clicks.user = users.value
    sinks:
      pages: {from: counted, table: /lake/pages, partition_by_date: page, compact_every: 20}
      alerts: {from: known, topic: alerts, key: user, mode: update}
    """)
ENVIRONMENT = {"BASE": "/ck"}


def test_a_whole_file() -> None:
    spec = read_yaml(GOOD, "clicks.yaml", ENVIRONMENT)
    assert (spec.name, spec.bootstrap_servers, spec.checkpoint) == ("clicks", "localhost:9092", "/ck/clicks")
    assert spec.trigger == Trigger(interval_ms=5000)
    assert spec.restart == Restart(attempts=3, first_delay_ms=100)
    assert spec.settings == {"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}
    clicks, users = spec.sources
    assert clicks.topic == "clicks" and clicks.watermark == Watermark("at", 600_000)
    assert clicks.deduplicate == ("user", "at")
    assert clicks.options == {"maxOffsetsPerTrigger": "1000", "includeHeaders": "true"}
    assert users.topic == "users.v1" and users.static
    assert [view.name for view in spec.views] == ["known", "counted"], "in the order of their inputs"
    assert spec.views[0].inputs == ("clicks", "users")
    assert spec.upstream("counted") == ("clicks", "users", "known", "counted")
    assert [sink.target for sink in spec.sinks] == ["delta table /lake/pages", "topic alerts"]


def refused(text: str) -> list[tuple[int, str]]:
    with pytest.raises(PipelineError) as caught:
        read_yaml(text, "p.yaml", ENVIRONMENT)
    return [(problem.line, problem.reason) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("old", "new", "line", "reason"),
    [
        ("trigger: 5s", "triger: 5s", 4, "no key 'triger'. Did you mean 'trigger'?"),
        ("trigger: 5s", "trigger: 5 parsecs", 4, "a duration like 5s"),
        ("trigger: 5s", "trigger: 5s\ntrigger: 6s", 5, "'trigger' appears twice, first in line 4"),
        ("${BASE}", "${HOME_BASE}", 3, "HOME_BASE is not set"),
        ("    schema: user", "    shema: user", 9, "Did you mean 'schema'?"),
        ("    schema: user string, page string, at timestamp\n", "", 8, "needs a 'schema'"),
        ("delay: 10 minutes", "delay: soon", 10, "'soon' is not a duration"),
        ("delay: 10 minutes", "delay: 10 moons", 10, "'moons' is not a unit"),
        ("watermark: {column: at, delay: 10 minutes}", "watermark: at", 10, "{column: at, delay: 10 minutes}"),
        ("    watermark: {column: at, delay: 10 minutes}\n", "", 10, "'deduplicate' needs a 'watermark'"),
        ("{maxOffsetsPerTrigger: 1000, includeHeaders: true}", "{subscribe: x}", 12, "must be written as 'topic'"),
        (
            "maxOffsetsPerTrigger: 1000",
            "maxOffsetsPerTrigger: many",
            12,
            "'maxOffsetsPerTrigger' must be a whole number",
        ),
        ("includeHeaders: true", "kafka.auto.offset.reset: latest", 12, "say where to begin with 'startingOffsets'"),
        (
            "    watermark:",
            "    starting_offsets: erliest\n    watermark:",
            10,
            "must be earliest, latest or JSON, not 'erliest'",
        ),
        ("at timestamp", "at timestmp", 9, "timestmp"),
        ("{column: at,", "{column: ta,", 10, "no column 'ta' for 'watermark'. There are: "),
        ("deduplicate: [user, at]", "deduplicate: [usr, at]", 11, "no column 'usr' for 'deduplicate'"),
        ("schema: user string, page string, at timestamp", "schema_file: /none.ddl", 9, "/none.ddl cannot be read"),
        ("mode: update", "options: {kafka.acks: seven}", 23, "'kafka.acks' is all, -1, 0 or 1, not 'seven'"),
        ("mode: update", "guarantee: exactly", 23, "Did you mean 'exactly_once'?"),
        ("mode: update", "guarantee: exactly_once, options: {guarantee: exactly_once}", 23, "'guarantee' twice"),
        ("mode: update", "guarantee: exactly_once, options: {kafka.acks: 1}", 23, "exactly_once needs all"),
        ("compact_every: 20", "guarantee: exactly_once", 22, "writes to a table, which has no 'guarantee'"),
        ("table: /lake/pages", "table: s3://lake/pages", 22, "s3:// is not supported"),
        ("format: string", "format: strng", 13, "Did you mean 'string'?"),
        ("FROM known", "FROM knwon", 17, "'knwon', which is neither a source nor a view. Did you mean 'known'?"),
        ("FROM Clicks JOIN users", "FROM Clicks JOIN counted", 16, "in a cycle: counted -> known -> counted"),
        ("GROUP BY 1, 2", "GROUP BY (1, 2", 18, "never closed"),
        ("from: counted", "from: cuonted", 22, "Did you mean 'counted'?"),
        ("topic: alerts, key", "key", 23, "either a 'topic' or a 'table'"),
        ("compact_every: 20", "compact_every: -1", 22, "whole number of at least 0"),
        ("compact_every: 20", "key: page", 22, "writes to a table, which has no 'key'"),
        ("partition_by_date: page", "mode: complete", 22, "only mode append"),
        ("topic: alerts, key: user, mode: update", "table: /lake/pages/", 23, "writes the table of sink 'pages'"),
        ("static: true", "static: maybe", 13, "true or false"),
        ("  alerts:", "  al-erts:", 23, "letters, digits and underscores and does not"),
        (
            "name: clicks",
            "name: web/clicks",
            1,
            "pipeline 'web/clicks': a name consists of letters, digits, underscores and da",
        ),
        ("maxOffsetsPerTrigger: 1000", "maxOffsetsPerTriger: 10", 12, "Did you mean 'maxOffsetsPerTrigger'?"),
        ("options: {max", "options:\n      pushdown: true\n      colums: user\n    # {", 14, "Did you mean 'columns'?"),
        ("mode: update", "options: {garantee: at_least_once}", 23, "'garantee'. Did you mean 'guarantee'?"),
        ("compact_every: 20", "options: {partitionByDate: at}", 22, "must be written as 'partition_by_date'"),
        ("from: counted", "from: clicks", 22, "'partition_by_date' needs a timestamp or a date, and 'page' is string"),
        ("from: known, topic: alerts, key: user", "from: clicks, topic: a, key: usr", 23, "no column 'usr' for 'key'"),
        ("attempts: 3", "attempts: lots", 5, "whole number"),
        ("name: clicks\n", "", 1, "no 'name'"),
    ],
)
def test_mistakes_have_a_line_and_a_reason(old: str, new: str, line: int, reason: str) -> None:
    assert old in GOOD
    found = refused(GOOD.replace(old, new, 1))
    assert any(at == line and reason in reported for at, reported in found), found


def test_all_mistakes_are_reported_at_once() -> None:
    found = refused("nam: x\nsources: {a: {topic: 1, pattern: b, format: raw}}\nsinks: {s: {from: b}}\n")
    reasons = "\n".join(reason for _, reason in found)
    for part in ("no key 'nam'", "no 'name'", "no 'checkpoint'", "both 'topic' and 'pattern'", "reads 'b'"):
        assert part in reasons


def test_a_schema_that_is_wrong_hides_nothing_else() -> None:
    text = GOOD.replace("at timestamp", "at timestmp").replace("maxOffsetsPerTrigger: 1000", "minPartitions: few")
    text = text.replace("FROM known", "FROM knwon")
    found = refused(text.replace("[user, at]", "[user, at]\n    topic: a\n    pattern: b"))
    assert [line for line, _ in found] == [9, 13, 14, 19]
    assert refused(GOOD.replace("delay: 10 minutes}", "delay: 10 minutes}\n    pattern: c.*\n    topic: c")) == [
        (11, "source 'clicks' has both 'topic' and 'pattern'; it needs one.")
    ]


def test_a_dash_in_the_name_of_a_pipeline() -> None:
    assert read_yaml(GOOD.replace("name: clicks", "name: web-clicks"), "p.yaml", ENVIRONMENT).name == "web-clicks"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "at the top"),
        ("- a\n- b\n", "at the top"),
        ("a: [1,\nb", "not YAML"),
        ("a: !!python/object:os.system x\nname: 1", "not a value"),
        ("name: a\ncheckpoint: b\nsources:\nsinks:\n", "no source"),
        ("x: " + "[" * 40 + "]" * 40, "nested deeper"),
        (
            "a: &a [1,1,1,1]\n"
            + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1 or str()}'] * 9)}]\n" for n in range(1, 12)),
            "more than 10000 values",
        ),
    ],
)
def test_files_that_are_no_pipeline(text: str, reason: str) -> None:
    assert any(reason in reported for _, reported in refused(text))


def test_two_steps_of_one_name() -> None:
    text = (
        GOOD.replace("  known:\n", "  users:\n")
        .replace("FROM known", "FROM clicks")
        .replace("from: known", "from: users")
    )
    assert any("'users' names two steps; the first is in line 13" in reported for _, reported in refused(text))


def test_durations() -> None:
    assert duration_ms("1h 30m") == 5_400_000
    assert duration_ms("500ms") == 500
    assert duration_ms("1.5 seconds") == 1500
    for wrong in ("", "5", "x", "5s!", "-5s"):
        with pytest.raises(ValueError, match="not a duration"):
            duration_ms(wrong)


def test_sources_read_committed_records_unless_they_name_another_level() -> None:
    level = "kafka.isolation.level"
    for source in read_yaml(GOOD, "clicks.yaml", ENVIRONMENT).sources:
        assert reading_options(source, "b:1")[level] == "read_committed"
    text = GOOD.replace("includeHeaders: true", f"{level}: read_uncommitted")
    clicks, users = read_yaml(text, "clicks.yaml", ENVIRONMENT).sources
    assert reading_options(clicks, "b:1")[level] == "read_uncommitted"
    assert reading_options(users, "b:1")[level] == "read_committed"
