"""Attacks on running brokers and on the embedded ZooKeeper. Every test has its own bound: bytes, steps or answers."""
