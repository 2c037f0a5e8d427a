"""Output of the benches: rows of both sides side by side, and sections of RESULTS.md that leave the others alone."""

from __future__ import annotations

from pathlib import Path

from bench.report import Row, compare, comparison_table, number, write_section


def test_rows_of_both_sides_are_compared_by_name() -> None:
    ours = [[Row("start", 1.0, "s", goal=0.2)], [Row("start", 3.0, "s", goal=0.2)], [Row("start", 2.0, "s", goal=0.2)]]
    theirs = [[Row("start", 10.0, "s"), Row("only theirs", 5.0, "s")]]
    start, only = compare({"klamm": ours, "kafka": theirs})
    assert (start.ratio, start.goal) == (0.2, "<= 0.2 met")
    assert start.cells() == ("start", "2", "10.0", "0.20", "100% / 0%", "s", "<= 0.2 met")
    assert only.ratio is None
    assert only.cells()[1:4] == ("", "5", "")


def test_a_goal_is_a_bound_from_the_side_that_is_worse() -> None:
    rates = {"klamm": [[Row("rate", 60.0, "/s", "higher", 0.7)]], "kafka": [[Row("rate", 100.0, "/s", "higher", 0.7)]]}
    (rate,) = compare(rates)
    assert rate.goal == ">= 0.7 **missed**"
    (alone,) = compare({"klamm": rates["klamm"]})
    assert alone.goal == ">= 0.7"


def test_columns_of_a_table_stand_under_each_other() -> None:
    lines = comparison_table(compare({"klamm": [[Row("a", 1, "s"), Row("longer", 123456, "s")]]})).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert "123,456" in lines[-1]


def test_numbers_keep_three_digits() -> None:
    assert [number(x) for x in (0.01234, 1.5, 12.34, 1234.5)] == ["0.0123", "1.5", "12.3", "1,234"]


def test_a_section_replaces_itself_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "RESULTS.md"
    path.write_text("# Title\n\nby hand\n")
    write_section("one", "first", path)
    write_section("two", "second", path)
    path.write_text(path.read_text() + "\nmore by hand\n")
    write_section("one", "new first\n", path)
    assert path.read_text() == (
        "# Title\n\nby hand\n\n<!-- begin one -->\nnew first\n<!-- end one -->\n\n"
        "<!-- begin two -->\nsecond\n<!-- end two -->\n\nmore by hand\n"
    )
