"""Runs the `isr-expiration` task to its end."""

from __future__ import annotations

from klamm.replica.replica_manager import ReplicaManager


def shrink_isrs(replicas: ReplicaManager) -> None:
    for _ in replicas.isr_pass() or ():
        pass
