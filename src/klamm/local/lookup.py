"""Looks up in ZooKeeper whether a topic that no broker knows may still appear."""

from __future__ import annotations

from klamm.client.patience import TOPIC_LOOKUP
from klamm.replica.topic_names import is_valid_topic_name
from klamm.zk.client.blocking import BlockingSession
from klamm.zk.client.zk_security import UNSECURED, ZkSecurity
from klamm.zk.model import paths
from klamm.zk.model.ops import NoNode, ZkError
from klamm.zk.model.znodes import decode_topic


def why_unknown(hosts: str, topic: str, partition: int, security: ZkSecurity = UNSECURED) -> str | None:
    """Return the reason if the partition cannot appear; None if it may, or if ZooKeeper does not answer."""
    if not is_valid_topic_name(topic):
        return f"{topic!r} is not a topic's name"
    try:
        with BlockingSession(hosts, TOPIC_LOOKUP.request_s, None, security) as session:
            if session.exists(paths.delete_topic_path(topic)):
                return f"topic {topic} is being deleted"
            znode = decode_topic(topic, session.get(paths.topic_path(topic)) or b"")
    except NoNode:
        return f"there is no topic {topic}"
    except ZkError:
        return None
    if partition in znode.assignment:
        return None
    return f"topic {topic} has {len(znode.assignment)} partitions, counted from 0"
