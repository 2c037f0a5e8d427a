"""`klamm partition confirm-loss`: removes losses of acknowledged records from ZooKeeper."""

from __future__ import annotations

from klamm.cli.client import parse_address, unreachable
from klamm.cli.cluster import ask_metadata
from klamm.cli.cluster_problems import zookeeper_hosts
from klamm.cli.lost_records import stored
from klamm.cli.output import fail, note, say
from klamm.zk.client.zk_security import UNSECURED, ZkSecurity


def find_zookeeper(bootstrap_server: str, timeout_s: float) -> str:
    """Return the ZooKeeper of the cluster, by its first broker that answers. Fails with a sentence if none does."""
    for server in bootstrap_server.split(","):
        view = ask_metadata(parse_address(server), timeout_s)
        for node in view.brokers if view is not None else ():
            if hosts := zookeeper_hosts((node.host, node.port), node.node_id, timeout_s):
                return hosts
    fail(unreachable(bootstrap_server))


def confirm(hosts: str, topic: str, partition: int | None, timeout_s: float, security: ZkSecurity = UNSECURED) -> None:
    """Remove the losses of a topic or of one partition from ZooKeeper."""
    from klamm.zk.client.blocking import BlockingSession
    from klamm.zk.model.ops import AuthFailed, Delete, MultiFailed, NoAuth, ZkError

    try:
        with BlockingSession(hosts, timeout_s, None, security) as session:
            chosen = [
                (path, lost)
                for path, lost in stored(session)
                if lost.topic_partition.topic == topic and partition in (None, lost.topic_partition.partition)
            ]
            for path, _ in chosen:
                session.write([Delete(path)])
    except ZkError as error:
        cause = error.error if isinstance(error, MultiFailed) else error
        if isinstance(cause, NoAuth | AuthFailed):
            fail(f"ZooKeeper at {hosts} lets only brokers do this. Pass --broker-config with the file of a broker.")
        fail(f"ZooKeeper at {hosts} did not remove the losses of {topic}: {error}")
    if not chosen:
        note(f"No losses of {topic}{'' if partition is None else f'-{partition}'} are known.")
    for _, lost in chosen:
        say(f"Confirmed: {lost.topic_partition}, offsets {lost.start_offset} to {lost.end_offset - 1}.")
