"""The identity of a broker: the cluster's id, the broker's id, and the files that mark its log directories."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Sequence
from uuid import UUID

from klamm.config import KafkaConfig
from klamm.errors import KlammError
from klamm.log.checkpoints import read_meta_properties
from klamm.log.files import Files
from klamm.zk.client.zk_session import ZkSession
from klamm.zk.model import paths, znodes
from klamm.zk.model.ops import Create, GetData, NodeExists, NoNode, SetData

log = logging.getLogger(__name__)


async def cluster_id(zk: ZkSession, new_uuid: Callable[[], UUID]) -> str:
    """The id under /cluster/id; the first broker of a cluster makes it up."""
    while True:
        try:
            return znodes.decode_cluster_id((await zk.read(GetData(paths.CLUSTER_ID))).data)
        except NoNode:
            proposed = base64.urlsafe_b64encode(new_uuid().bytes).decode().rstrip("=")
            await zk.ensure_paths([paths.CLUSTER_ID.rpartition("/")[0]])
        try:
            await zk.create(Create(paths.CLUSTER_ID, znodes.encode_cluster_id(proposed)))
        except NodeExists:
            continue
        log.info("This is a new cluster: its id is %s", proposed)


async def broker_id(zk: ZkSession, config: KafkaConfig, files: Files, log_dirs: Sequence[str]) -> int:
    """`broker.id` if it is given, else the one this directory had before, else one that ZooKeeper counts."""
    known = {meta.broker_id for path in log_dirs if (meta := read_meta_properties(files, path)) and meta.broker_id >= 0}
    if config.broker_id >= 0:
        return config.broker_id
    if len(known) > 1:
        raise KlammError(f"The log directories belong to several brokers: {', '.join(map(str, sorted(known)))}.")
    if known:
        return known.pop()
    if not config.broker_id_generation_enable:
        raise KlammError("broker.id is missing: set it, or set broker.id.generation.enable=true.")
    counted = await zk.set(SetData(paths.BROKER_SEQUENCE_ID, b""))
    return config.reserved_broker_max_id + counted.stat.version
