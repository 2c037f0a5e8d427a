"""Where markers go: a partition that the metadata does not have may be unknown, and not deleted."""

from __future__ import annotations

from klamm.coordinator.transaction.transaction_markers import Destination
from klamm.coordinator.transaction.transaction_shell import locate_by_metadata
from klamm.metadata import MetadataCache
from klamm.metadata.update import MetadataUpdate, PartitionState, TopicUpdate
from klamm.model import BrokerEndPoints, TopicPartition

BROKERS = (BrokerEndPoints(1, ()),)
T0, GONE = TopicPartition("t", 0), TopicPartition("gone", 0)


def update(controller_epoch: int) -> MetadataUpdate:
    state = PartitionState("t", 0, controller_epoch, 1, 0, (1,), 0, (1,))
    return MetadataUpdate(1, controller_epoch, BROKERS, (TopicUpdate("t", (state,)),))


def test_a_broker_that_leads_before_it_has_metadata_waits() -> None:
    """The simulator found it: the markers were dropped, and the transaction stayed open for ever."""
    cache = MetadataCache(1)
    locate = locate_by_metadata(cache, lambda: 1)
    assert locate(T0) is Destination.UNKNOWN
    cache.update(MetadataUpdate(1, 1, BROKERS))
    assert locate(T0) is Destination.UNKNOWN
    cache.update(update(1))
    assert locate(T0) == 1
    assert locate(GONE) is Destination.DELETED


def test_metadata_of_an_earlier_controller_is_ignored() -> None:
    cache = MetadataCache(1)
    cache.update(update(1))
    locate = locate_by_metadata(cache, lambda: 2)
    assert locate(GONE) is Destination.UNKNOWN
    cache.update(update(2))
    assert locate(GONE) is Destination.DELETED
