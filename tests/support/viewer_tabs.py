"""The tabs of a live cluster's viewer while a broker is missing: each shows contents of the cluster and no problem."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from confluent_kafka import Consumer, TopicPartition
from playwright.sync_api import Page, expect

from klamm.testing import LocalCluster

GROUP: Final = "night-shift"
NO_PIPELINE: Final = "No pipeline has run on this machine."


def commit_as_group(cluster: LocalCluster, topic: str) -> None:
    """Create the group whose row the Groups tab has to show: it has a committed offset and no member."""
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": GROUP, "enable.auto.commit": False}
    consumer = Consumer(settings)
    try:
        consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
    finally:
        consumer.close()


def tabs_answer(page: Page, contents: Sequence[tuple[str, str]] = ()) -> None:
    """Open the given tabs, then those of topics, groups, transactions and pipelines.

    Headings stay when the server reports a problem. These texts are parts of answers, and a problem fails the test.
    """
    common = (
        ("Topics", "under-replicated"),
        ("Groups", GROUP),
        ("Transactions", "Open"),
        ("Pipelines", NO_PIPELINE),
    )
    for tab, text in (*contents, *common):
        page.get_by_role("tab", name=tab, exact=True).click()
        root = page.locator(f"#{tab.lower()}")
        expect(root).to_contain_text(text)
        if tab == "Groups":
            expect(root.locator("tr.link", has_text=GROUP)).to_contain_text("Empty")
        if tab == "Transactions":
            expect(root.locator(".good, table").first).to_be_visible()
        expect(root.locator(".problem")).to_have_count(0)
