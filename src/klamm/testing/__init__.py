"""For tests of software that uses Kafka: a cluster of real broker processes in one line, and pytest fixtures."""

from klamm.testing.local_cluster import LocalCluster

__all__ = ["LocalCluster"]
