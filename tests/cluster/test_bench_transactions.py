"""The load of bench/transactions.py works on klamm and accounts for every record. It measures nothing here."""

from __future__ import annotations

from bench import transactional_load
from klamm.testing import LocalCluster


def test_the_transactional_load(klamm_cluster: LocalCluster) -> None:
    topic = klamm_cluster.unique_topic_name("transactions")
    klamm_cluster.create_topic(topic, partitions=3)
    options = {"bootstrap": klamm_cluster.bootstrap_servers, "topic": topic, "partitions": 3}
    assert transactional_load.run("transactions", **options, count=4, producers=2)["transactions_per_s"] > 0
    assert transactional_load.run("commit", **options, count=3)["commit_p50"] > 0
    stream = klamm_cluster.unique_topic_name("stream")
    klamm_cluster.create_topic(stream, partitions=3)
    options["topic"] = stream
    written = transactional_load.run("stream", **options, count=3_000)
    assert transactional_load.run("read", **options, count=int(written["committed"]))["records_per_s"] > 0
