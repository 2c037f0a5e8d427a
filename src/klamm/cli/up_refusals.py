"""Arguments that `klamm up` and `klamm broker` refuse before they start anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from klamm.cli.dashboard import MISSING, is_installed
from klamm.cli.output import fail
from klamm.model import parse_host_port

_OWN_KEYS: Final = {
    "broker.id": ": brokers count from 1",
    "listeners": "; use --port",
    "log.dir": "; use --data-dir",
    "log.dirs": "; use --data-dir",
    "zookeeper.connect": "; use --zookeeper",
}
_ZOOKEEPER_PORT: Final = 2181
ZOOKEEPER_WAIT_S: Final = 5.0


def refuse_secrets(settings: Iterable[str], option: str, instead: str) -> None:
    """Fail for passwords on the command line: others can read the arguments of a process. `instead` is the remedy."""
    from klamm.config.kafka_config import broker_key

    for name in settings:
        if (key := broker_key(name)) is not None and key.is_sensitive:
            fail(f"{option} {name}: others can read the arguments of a process. {instead}")


def refuse_own_keys(settings: Mapping[str, str]) -> None:
    for key, instead in _OWN_KEYS.items():
        if key in settings:
            fail(f"{key} is set by klamm up{instead}.")


def refuse_drill_without(zookeeper: str | None, dashboard_port: int) -> None:
    if zookeeper is not None:
        fail("--drill needs the embedded ZooKeeper: leave out --zookeeper.")
    if dashboard_port < 0 or not is_installed():
        fail(f"--drill needs the viewer. {MISSING if dashboard_port >= 0 else 'Leave out --dashboard-port -1.'}")


def refuse_less_security(data_dir: Path, *, tls: bool, sasl: str | None, acls: bool, drill: bool) -> None:
    """Fail for a choice that would open a secured cluster to clients that were refused before."""
    from klamm.local.cluster_security import made_with
    from klamm.local.security_choice import SecurityChoice

    choice = SecurityChoice.of(tls, sasl, acls)
    if drill and choice.is_on:
        fail(
            "--drill serves a viewer without a login: everyone on this machine would have the rights of a super user. "
            f"Leave out {choice.options()}."
        )
    if (before := made_with(data_dir)) is not None and not choice.covers(before):
        fail(
            f"The cluster in {data_dir} was started with {before.options()}. "
            "Pass these options again, or choose another --data-dir."
        )


def must_answer(zookeeper: str) -> None:
    """Fail unless one server of the ensemble accepts a connection."""
    import socket

    for server in zookeeper.partition("/")[0].split(","):
        try:
            address = parse_host_port(server, _ZOOKEEPER_PORT)
        except ValueError:
            fail(f"--zookeeper cannot be {zookeeper!r}: expected HOST:PORT,HOST:PORT/CHROOT.")
        with suppress(OSError), socket.create_connection(address, ZOOKEEPER_WAIT_S):
            return
    fail(f"ZooKeeper does not answer at {zookeeper}.")
