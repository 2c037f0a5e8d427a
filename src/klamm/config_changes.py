"""Configurations in ZooKeeper: read at the start, followed through /config/changes, changed with a notification.

`/config/<type>/<name>` holds what is set for a topic or broker, the quotas of a user or client id (`quota_store`), and
the SCRAM credentials of a user.
A change writes it and a sequential child of `/config/changes` in one transaction; every broker watches these children,
reads the named entities and passes them to its `ConfigRepository`. A broker that loses its session reads everything
again, so no change is missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from klamm.config import DEFAULT_BROKER, ConfigRepository
from klamm.config.topic_config import KEEP_RECORDS
from klamm.quota import quota_store
from klamm.zk.client import notices
from klamm.zk.model import paths, znodes
from klamm.zk.model.ops import (
    BadVersion,
    ConnectionLoss,
    Create,
    MultiFailed,
    NodeExists,
    NoNode,
    SetData,
    Stat,
    WatchEvent,
    WriteOp,
    ZkError,
)

if TYPE_CHECKING:
    from klamm.zk.client.zk_session import ZkSession

TOPICS: Final = "topics"
BROKERS: Final = "brokers"

Properties = dict[str, str]

log = logging.getLogger(__name__)


def in_force(configs: ConfigRepository, entity_type: str, name: str) -> Properties:
    """Return the settings that a broker uses for an entity whose znode cannot be decoded.

    These are the last ones that it could read. For a topic without any, see `KEEP_RECORDS`.
    """
    if entity_type == TOPICS:
        return dict(configs.topic_overrides(name)) or dict(KEEP_RECORDS)
    return dict(configs.default_broker_overrides if name == DEFAULT_BROKER else configs.broker_overrides)


async def read_configs(
    zk: ZkSession, entity_type: str, names: Sequence[str], configs: ConfigRepository | None = None
) -> dict[str, Properties]:
    """Read the settings of each entity, in one round trip; an entity without a znode has none.

    If a znode cannot be decoded, return the settings in force; none if `configs` is not given.
    """
    return {
        name: found if found is not None else {} if configs is None else in_force(configs, entity_type, name)
        for name, found in (await _read(zk, entity_type, names)).items()
    }


async def _read(zk: ZkSession, entity_type: str, names: Sequence[str]) -> dict[str, Properties | None]:
    """As `read_configs`, with None for settings that cannot be decoded."""
    wanted = [paths.config_entity_path(entity_type, name) for name in names]
    found = await zk.read_many(wanted)
    return {
        name: {} if answer is None else _decode(path, answer[0])
        for name, path, answer in zip(names, wanted, found, strict=True)
    }


async def change_config(
    zk: ZkSession,
    entity_type: str,
    name: str,
    change: Callable[[Properties], Properties],
    configs: ConfigRepository,
) -> Properties:
    """Read, change and write one entity together with its notification; returns the new settings.

    If the znode cannot be decoded, the settings in force are changed.
    After a concurrent write, `change` is called again with the new content. If `change` raises, nothing is written.
    After a lost connection the znode shows whether the write took effect.
    """
    path = paths.config_entity_path(entity_type, name)
    while True:
        found = (await zk.read_many([path]))[0]
        known = {} if found is None else _decode(path, found[0])
        after = change(in_force(configs, entity_type, name) if known is None else dict(known))
        if found is not None and after == known:  # a damaged znode is always written
            return after
        try:
            await zk.multi(_write(path, f"{entity_type}/{name}", found, after))
        except ConnectionLoss:
            continue
        except MultiFailed as failed:
            if not isinstance(failed.error, BadVersion | NodeExists | NoNode):
                raise failed.error from None
            continue
        return after


def _write(path: str, entity_path: str, found: tuple[bytes | None, Stat] | None, config: Properties) -> list[WriteOp]:
    data = znodes.encode_config(config)
    change = Create(paths.config_change_path(), znodes.encode_config_change(entity_path), sequential=True)
    if found is None:
        return [Create(path, data), change]
    return [SetData(path, data, found[1].version), change]


def _decode(path: str, data: bytes | None) -> Properties | None:
    """Return None for an undecodable znode, which is logged: a broker must start in spite of it, as in Kafka."""
    try:
        return znodes.decode_config(path, data)
    except znodes.ZnodeFormatError as error:
        log.warning("ignoring a configuration in ZooKeeper: %s", error)
        return None


class ConfigChangeListener:
    """Keeps a broker's `ConfigRepository` equal to ZooKeeper. Lives on the broker loop."""

    def __init__(self, zk: ZkSession, configs: ConfigRepository, broker_id: int) -> None:
        self._zk = zk
        self._configs = configs
        self._broker_names = (DEFAULT_BROKER, str(broker_id))
        self._last_seen = -1
        self._is_dirty = False
        self._runner: asyncio.Task[None] | None = None
        self._refreshes: dict[asyncio.Task[None], None] = {}
        """In start order: a set would cancel them in the order of memory addresses."""
        configs.refresh_topics = self.refresh_topics

    def start(self) -> None:
        """Follow changes from the last `load_all` on; after a lost session everything is read again."""
        from klamm.zk.client.zk_session import SessionListener

        self._zk.on_children(paths.CONFIG_CHANGES, self._on_change)
        self._zk.add_listener(SessionListener(after_new_session=self._load_quietly))
        self.wake()

    async def stop(self) -> None:
        self._zk.forget_children(paths.CONFIG_CHANGES)
        for task in [*self._refreshes, *([self._runner] if self._runner is not None else [])]:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, ZkError):
                await task

    async def load_all(self) -> None:
        """Read everything again. The watch is set before the reads, so no change in between is missed."""
        self._last_seen = notices.newest(await self._changes())
        await self._refresh_brokers(self._broker_names)
        users = await quota_store.read_all(self._zk)
        self._configs.client_quotas.replace_all(users)
        self._configs.user_credentials.replace_all(
            (entity.user, properties)
            for entity, properties in users.items()
            if entity.user and entity.client_id is None
        )
        with contextlib.suppress(NoNode):
            topics = await self._zk.get_children(paths.config_entity_type_path(TOPICS))
            await self._refresh([*topics, *self._configs.topics_with_overrides()])

    async def _load_quietly(self) -> None:
        try:
            await self.load_all()
        except ZkError as error:
            log.warning("reading configurations failed: %s; the next session reads all", error)

    def refresh_topics(self, topics: Iterable[str]) -> asyncio.Future[None]:
        """Read the configurations of topics that are new to this broker; done when the repository has them."""
        refresh = self._refresh_quietly(list(topics))
        task = asyncio.get_running_loop().create_task(refresh, name="topic-config-refresh")
        self._refreshes[task] = None
        task.add_done_callback(self._refreshes.pop)
        return task

    async def _refresh_quietly(self, topics: list[str]) -> None:
        """An unreadable configuration must not block a topic: the next session reads it."""
        try:
            await self._refresh(topics)
        except ZkError as error:
            log.warning("reading the configurations of %d topics failed: %s", len(topics), error)

    async def _refresh(self, topics: Sequence[str], *, is_news: bool = False) -> None:
        """A topic with an undecodable configuration keeps the former one.

        If that is not known, the topic deletes no records: the configuration may have said so.
        """
        for topic, config in (await _read(self._zk, TOPICS, list(dict.fromkeys(topics)))).items():
            if config is None:
                config = in_force(self._configs, TOPICS, topic)
            self._configs.set_topic(topic, config, is_news=is_news)

    async def _refresh_brokers(self, names: Sequence[str]) -> None:
        """Undecodable settings of a broker do not change those in force."""
        for name, config in (await _read(self._zk, BROKERS, names)).items():
            if config is not None:
                self._configs.set_broker(name, config)

    def _on_change(self, event: WatchEvent) -> None:
        self.wake()

    def wake(self) -> None:
        """Process notifications since the last check."""
        self._is_dirty = True
        if self._runner is None or self._runner.done():
            self._runner = asyncio.get_running_loop().create_task(self._run(), name="config-changes")

    async def _run(self) -> None:
        try:
            while self._is_dirty:
                self._is_dirty = False
                await self._process(await self._changes())
        except ZkError as error:
            log.warning("reading configuration changes failed: %s; the next session reads all", error)
        except Exception:
            log.exception("applying configuration changes failed; the next change repeats them")

    async def _changes(self) -> list[str]:
        return await notices.watched(self._zk, paths.CONFIG_CHANGES)

    async def _process(self, names: list[str]) -> None:
        new = [paths.config_change_path(name) for name in names if notices.number(name) > self._last_seen]
        changed: dict[str, None] = {}
        for path, answer in zip(new, await self._zk.read_many(new), strict=True):
            if answer is not None:
                try:
                    changed[znodes.decode_config_change(path, answer[0])] = None
                except znodes.ZnodeFormatError as error:
                    log.warning("ignoring a configuration change in ZooKeeper: %s", error)
        await self._apply(changed)
        self._last_seen = max(self._last_seen, notices.newest(names))

    async def _apply(self, entity_paths: Collection[str]) -> None:
        entities = [entity for entity in map(quota_store.entity_of, entity_paths) if entity is not None]
        split = [entity_path.partition("/") for entity_path in entity_paths]
        topics = [name for kind, _, name in split if kind == TOPICS and name]
        brokers = [name for kind, _, name in split if kind == BROKERS and name in self._broker_names]
        if topics:
            await self._refresh(topics, is_news=True)
        if brokers:
            await self._refresh_brokers(brokers)
        if entities:
            for entity, properties in (await quota_store.read_entities(self._zk, entities)).items():
                self._configs.client_quotas.set_entity(entity, properties)
                if entity.user and entity.client_id is None:
                    self._configs.user_credentials.set_user(entity.user, properties)

    async def purge(self, now_ms: int) -> None:
        await notices.purge(self._zk, paths.CONFIG_CHANGES, now_ms)
