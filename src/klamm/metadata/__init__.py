"""The broker's view of the cluster: an immutable snapshot, and the cache that swaps it."""

from __future__ import annotations

from klamm.metadata.cache import MetadataCache
from klamm.metadata.snapshot import MetadataSnapshot, PartitionState, TopicState
from klamm.metadata.update import MetadataUpdate, TopicUpdate

__all__ = ["MetadataCache", "MetadataSnapshot", "MetadataUpdate", "PartitionState", "TopicState", "TopicUpdate"]
