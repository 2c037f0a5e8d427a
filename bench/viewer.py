"""How fluent the viewer is with 1,000 topics of 10 partitions: `python -m bench.viewer`.

- An hour of control log, as `tests/viewer` makes it, in headless Chromium: bytes, time until all is shown, the work of
  frames and the time between them while the window moves, and the time that another second of records takes.
- With `--against`, the same for the static files of another version, in turn with those of this one.
- With `--cluster`, a broker with 10,000 partitions: bytes and times of the pages' answers. `--only-cluster --topics 50`
  is a short form of this part.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from playwright.sync_api import Page, Playwright, sync_playwright

from bench import report
from klamm.cli.dashboard import live_source, new_source
from klamm.dashboard import web_app
from klamm.dashboard.serve import DashboardServer
from klamm.testing import LocalCluster
from tests.support.browser import until
from tests.support.long_control_log import long_control_log

SECTION: Final = "viewer"
TOPICS, PARTITIONS = 1_000, 10
ROUNDS: Final = 3
FLAGS: Final = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking")
FRAMES: Final = """async (span) => {
    const viewer = window.klammViewer;
    const frame = () => new Promise(requestAnimationFrame);
    const times = { chart: [], work: [], interval: [] };
    let before = await frame();
    for (let share = 0; share < 1; share += 0.01) {
        const start = viewer.bounds.start + share * (viewer.bounds.end - viewer.bounds.start - span);
        const began = performance.now();
        viewer.look({ start, end: start + span, time: start + span * 0.9 });
        const looked = performance.now() - began;
        const now = await frame(); // the chart is drawn before: it has asked for the frame first
        times.chart.push(viewer.chart.frames.at(-1));
        times.work.push(looked + viewer.chart.frames.at(-1));
        times.interval.push(now - before);
        before = now;
    }
    return times;
}"""
FIGURES: Final = {"chart": "chart of a frame", "work": "all work of a frame", "interval": "between two frames"}
"""The window moves in every frame, as by a drag. The work includes the scrubber and the table of the state."""
ARRIVAL: Final = """async () => {
    const viewer = window.klammViewer;
    const { run } = viewer;
    const times = [];
    for (let round = 0; round < 20; round += 1) {
        const at = run.end + 1000;
        const last = run.records.slice(-100).map((it) => ({ ...it, at_ms: at }));
        const began = performance.now();
        run.add(last);
        viewer.setRun(run, { start: viewer.bounds.start, end: run.end, keepView: true });
        viewer.chart.draw();
        times.push(performance.now() - began);
    }
    return times;
}"""
Line = tuple[str, str, str]
Samples = dict[str, list[float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cluster", action="store_true", help="Also start a broker with 10,000 partitions.")
    parser.add_argument(
        "--only-cluster", action="store_true", help="Start the broker and leave out the hour of control log."
    )
    parser.add_argument("--topics", type=int, default=TOPICS, help=f"Topics of the broker, of {PARTITIONS} partitions.")
    parser.add_argument("--write", action="store_true", help="Write the section of RESULTS.md.")
    parser.add_argument("--against", type=Path, metavar="DIR", help="Static files of another version, to compare.")
    load = report.load_average()
    chosen = parser.parse_args()
    lines = [] if chosen.only_cluster else list(measure_hour())
    if chosen.cluster or chosen.only_cluster:
        lines += measure_answers(chosen.topics)
    parts = [report.table(("", "value", "unit"), lines)]
    if chosen.against is not None:
        parts.append(report.table(("", "other", "this", "other / this"), list(compare(chosen.against.resolve()))))
    text = "\n\n".join(parts)
    print(text)
    options = f"{' --cluster' if chosen.cluster else ''}{' --against DIR' if chosen.against else ''}"
    head = f"`python -m bench.viewer{options}`. Machine: {report.machine()}. {report.load_note(load)}"
    if chosen.write:
        report.write_section(SECTION, f"## The viewer\n\n{head}\n\n{text}")


def measure_hour() -> Iterator[Line]:
    records = long_control_log()
    yield "records of the hour", f"{len(records):,}", ""
    yield "their bytes", report.number(sum(map(len, records)) / 1e6), "MB"
    with sync_playwright() as playwright:
        found = _hour(_page(playwright), records)
    yield "until all are shown", report.number(found.pop("until all are shown")[0] / 1e3), "s"
    heap = found.pop("JavaScript heap")[0]
    for name, values in found.items():
        yield from _times(name, values)
    yield "JavaScript heap", report.number(heap / 1e6), "MB"


def compare(other: Path) -> Iterator[tuple[str, str, str, str]]:
    """Both versions in turn, so that they share the machine's load. The smallest median of each has the least noise."""
    records, own = long_control_log(), web_app.STATIC
    best: dict[Path, dict[str, float]] = {other: {}, own: {}}
    with sync_playwright() as playwright:
        for _ in range(ROUNDS):
            for static, least in best.items():
                web_app.STATIC = static  # type: ignore[misc]
                for name, values in _hour(_page(playwright), records).items():
                    least[name] = min(least.get(name, float("inf")), statistics.median(values))
    web_app.STATIC = own  # type: ignore[misc]
    for name, value in best[own].items():
        if name != "JavaScript heap":
            before = best[other][name]
            yield f"{name}, ms", report.number(before), report.number(value), f"{before / value:.1f}"


def _page(playwright: Playwright) -> Page:
    program = shutil.which("chromium")
    assert program is not None, "Chromium is missing: apt-get install chromium, or make browser"
    browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
    return browser.new_page(viewport={"width": 1440, "height": 900}, reduced_motion="reduce")


def _hour(page: Page, records: tuple[bytes, ...]) -> Samples:
    found: Samples = {}
    with DashboardServer(new_source(title="an hour", records=records)) as server:
        begun = time.monotonic()
        page.goto(server.address)
        until(page, f"document.body.dataset.records === '{len(records)}'")
        found["until all are shown"] = [(time.monotonic() - begun) * 1000]
        for name, span_ms in (("10 s", 10_000), ("a minute", 60_000), ("the hour", 3_600_000)):
            for figure, times in page.evaluate(FRAMES, span_ms).items():
                found[f"{FIGURES[figure]}, window of {name}"] = times
        found["100 records arrive"] = page.evaluate(ARRIVAL)
        found["JavaScript heap"] = [page.evaluate("performance.memory?.usedJSHeapSize ?? 0")]
        page.goto("about:blank")
    page.context.browser.close()  # type: ignore[union-attr]
    return found


def _times(name: str, values: list[float]) -> Iterator[Line]:
    yield f"{name}, median", report.number(statistics.median(values)), "ms"
    yield f"{name}, 95th percentile", report.number(sorted(values)[int(len(values) * 0.95)]), "ms"


def measure_answers(topics: int) -> Iterator[Line]:
    """The answers that pages ask for every three seconds, and the page that shows them."""
    settings = {"klamm.metrics.port": 0, "klamm.control.log.enable": True}
    with LocalCluster(brokers=1, broker_configs=settings) as cluster:
        yield "partitions of the broker", f"{topics * PARTITIONS:,}", ""
        for number in range(topics):
            cluster.create_topic(f"topic{number}", partitions=PARTITIONS)
        with urllib.request.urlopen(f"http://{cluster.metrics_address(1)}/metrics", timeout=60) as answer:
            yield "all metrics of the broker", report.number(len(answer.read()) / 1e6), "MB"
        with DashboardServer(live_source(cluster.bootstrap_servers)) as server:
            for name, path in (
                ("Cluster and Requests", "api/status"),
                ("Topics", "api/cluster/topics"),
                ("one topic", "api/cluster/topic?name=topic7"),
                ("offsets of a partition", "api/cluster/replicas?topic=topic7&partition=3"),
            ):
                yield from _answer(name, f"{server.address}{path}")
            with sync_playwright() as playwright:
                yield from _live_pages(_page(playwright), server.address)


def _live_pages(page: Page, address: str) -> Iterator[Line]:
    """How long a page needs until it shows the cluster, and its frames while the control plane's window moves."""
    begun = time.monotonic()
    page.goto(f"{address}#tab=topics")
    until(page, "document.querySelectorAll('#topics tbody tr').length > 0")
    yield "until Topics are shown", report.number(time.monotonic() - begun), "s"
    page.goto("about:blank")
    begun = time.monotonic()
    page.goto(address)
    until(page, "document.body.dataset.ready === '1' && Number(document.body.dataset.records) > 0")
    yield "until the live control plane is shown", report.number(time.monotonic() - begun), "s"
    yield "its records", f"{int(page.evaluate('Number(document.body.dataset.records)')):,}", ""
    for figure, times in page.evaluate(FRAMES, 10_000).items():
        yield from _times(f"{FIGURES[figure]}, live control plane", times)
    page.goto("about:blank")
    page.context.browser.close()  # type: ignore[union-attr]


def _answer(name: str, address: str) -> Iterator[Line]:
    times, size = [], 0
    for _ in range(5):
        begun = time.monotonic()
        with urllib.request.urlopen(address, timeout=60) as answer:
            size = len(answer.read())
        times.append((time.monotonic() - begun) * 1000)
    yield f"answer of {name}", report.number(size / 1e3), "kB"
    yield f"answer of {name}, median", report.number(statistics.median(times)), "ms"


if __name__ == "__main__":
    main()
