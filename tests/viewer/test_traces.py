"""The Requests tab of a live cluster: a slow request with its waterfall, and what its wait ended with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from playwright.sync_api import Page, expect

from klamm.cli.dashboard import live_source
from klamm.dashboard.serve import DashboardServer
from klamm.testing import LocalCluster
from tests.support.browser import until
from tests.support.calm import CALM


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    settings = {**CALM, "klamm.metrics.port": 0, "klamm.request.trace.sample": 1}
    with LocalCluster(brokers=3, broker_configs=settings) as running:
        running.create_topic("orders", partitions=1, replication_factor=3)
        yield running


def test_a_produce_with_its_waterfall(page: Page, cluster: LocalCluster) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "client.id": "<b>shop</b>", "acks": "all"})
    for _ in range(5):
        producer.produce("orders", value=b"1")
        assert producer.flush(60) == 0
    with DashboardServer(live_source(cluster.bootstrap_servers)) as server:
        page.goto(f"{server.address}#tab=requests")
        page.get_by_label("Filter traces").fill("shop")
        produced = page.locator("#slow-requests details", has_text="Produce v").first
        expect(produced).to_contain_text("client <b>shop</b>", timeout=60_000)
        produced.locator("summary").click()
        expect(produced).to_contain_text("handler")
        expect(produced).to_contain_text("Produce purgatory")
        expect(produced).to_contain_text("orders-0, completed by Fetch of broker")
        page.get_by_label("with fetches that waited for data").check()
        until(page, "['find=shop', 'waited=1', 'open='].every((it) => location.hash.includes(it))")
        shared = page.url
        page.goto("about:blank")
        page.goto(shared)  # the address holds the filter, its checkbox and the opened trace
        expect(page.get_by_label("Filter traces")).to_have_value("shop")
        expect(page.get_by_label("with fetches that waited for data")).to_be_checked()
        expect(page.locator("#slow-requests details[open]")).to_contain_text("orders-0, completed by Fetch of broker")
        page.get_by_label("Filter traces").fill("no such client")
        expect(page.locator("#slow-requests")).to_contain_text("No traced request matches.")
        page.goto("about:blank")  # before the server ends, which the page would report as an error


def test_phases_are_stacked_in_the_order_of_a_request(page: Page, cluster: LocalCluster) -> None:
    """The order of the request log. A quota mutes the connection after the response, so its time is drawn last."""
    order = ["request_queue", "local", "remote", "response_order", "response_queue", "response_send", "throttle"]
    with DashboardServer(live_source(cluster.bootstrap_servers)) as server:
        page.goto(f"{server.address}#tab=requests")
        expect(page.locator("#requests .legend .phase")).to_have_count(len(order))
        stacked = page.evaluate(
            """async (phases) => {
                const { showRequests } = await import("./static/requests.js");
                const times = Object.fromEntries(phases.toSorted().map((phase) => [phase, 2]));
                const made = { api: "Produce", rate: 1, error_rate: 0, total_ms: 12, phases_ms: times };
                const element = document.createElement("div");
                showRequests(element, { activity: {}, requests: [made] });
                // The first of each: below the row of the API may be the waterfalls of traced requests.
                const phases_of = (place) => element.querySelector(place).querySelectorAll(".phase");
                const names = (place) => [...phases_of(place)].map((it) => it.classList[1]);
                return [names(".legend"), names(".phases")];
            }""",
            order,
        )
        assert stacked == [order, order]
        page.goto("about:blank")
