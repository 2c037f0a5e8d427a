"""Losses of acknowledged records, which brokers have written to ZooKeeper, and the sentences about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from klamm.zk.client.blocking import BlockingSession
    from klamm.zk.model.znodes import LostRecords

SHOWN: Final = 20
"""Losses that a status names one by one: after a power failure there may be thousands."""


def sentences(losses: list[LostRecords]) -> list[str]:
    """Return one sentence per loss with its remedy, and one for all that are not shown."""
    found = [_sentence(lost) for lost in losses[:SHOWN]]
    if len(losses) > SHOWN:
        found.append(
            f"{len(losses) - SHOWN} more losses of acknowledged records: confirm those above, and the status shows the "
            "next ones."
        )
    return found


def _sentence(lost: LostRecords) -> str:
    topic, partition = lost.topic_partition
    return (
        f"{topic}-{partition}: acknowledged records are lost on all replicas, offsets {lost.start_offset} to "
        f"{lost.end_offset - 1}, since broker {lost.broker_id} became the leader. Restore them from a copy or produce "
        f"them again, then run `klamm partition confirm-loss --topic {topic} --partition {partition}`."
    )


def read_losses(session: BlockingSession) -> list[LostRecords]:
    """Return the losses of topics that still exist, by partition and offset.

    Raises ConnectionLoss and ZnodeFormatError.
    """
    from klamm.zk.model import paths, znodes

    losses = [lost for _, lost in stored(session)]
    topics = list(dict.fromkeys(lost.topic_partition.topic for lost in losses))
    found = session.read_many([paths.topic_path(topic) for topic in topics])
    ids = {
        topic: znodes.decode_topic(topic, data).topic_id
        for topic, data in zip(topics, found, strict=True)
        if data is not None
    }
    known = [lost for lost in losses if ids.get(lost.topic_partition.topic, ...) in (None, lost.topic_id)]
    return sorted(known, key=lambda lost: (lost.topic_partition, lost.start_offset))


def stored(session: BlockingSession) -> list[tuple[str, LostRecords]]:
    """Return the paths of all losses and what they contain."""
    from klamm.zk.model import paths, znodes
    from klamm.zk.model.ops import NoNode

    try:
        names = session.get_children(paths.LOST_RECORDS)
    except NoNode:
        return []
    children = [f"{paths.LOST_RECORDS}/{name}" for name in names]
    found = session.read_many(children)
    pairs = zip(children, found, strict=True)
    return [(path, znodes.decode_lost_records(path, data)) for path, data in pairs if data is not None]
