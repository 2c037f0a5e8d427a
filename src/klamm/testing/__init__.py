"""Test support for software that uses Kafka: a cluster of real broker processes in one line, and pytest fixtures."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from klamm.local.local_cluster import LocalCluster

__all__ = ["LocalCluster"]


def __getattr__(name: str) -> object:
    """Import LocalCluster on first use: pytest loads this package in every test session."""
    if name == "LocalCluster":
        from klamm.local.local_cluster import LocalCluster

        return LocalCluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
