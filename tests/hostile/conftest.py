"""Attacks on running brokers and on the embedded ZooKeeper. Every test has a bound of its own: bytes, steps or answers."""
