"""`klamm up`: a cluster on this machine, until Ctrl-C. `klamm broker`: one broker of any cluster."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from klamm.cli.client import parse_pairs
from klamm.cli.dashboard import AllowChanges, is_installed
from klamm.cli.output import Failure, bold, fail, note, say, yellow
from klamm.cli.running_clusters import announced
from klamm.cli.up_refusals import (
    ZOOKEEPER_WAIT_S,
    must_answer,
    refuse_drill_without,
    refuse_less_security,
    refuse_own_keys,
    refuse_secrets,
)
from klamm.errors import KlammError
from klamm.model import parse_host_port

if TYPE_CHECKING:
    from klamm.local.local_cluster import LocalCluster

_LAST_PORT: Final = 65535


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


UP_DEFAULTS: Final[dict[str, object]] = {
    "zookeeper.session.timeout.ms": 6000,
    "group.initial.rebalance.delay.ms": 0,
    "controlled.shutdown.retry.backoff.ms": 200,
    "klamm.metrics.port": 0,
}
CONTROL_PLANE: Final[dict[str, object]] = {"control.plane.listener.name": "CONTROLLER"}

_NO_FILE: Final = (
    "`klamm up` has no file for it; it makes the passwords of --tls and --sasl itself. To set this key, put it into "
    "the configuration of a broker, a file of mode 0600, and start the broker with `klamm broker --config FILE`."
)
_SLOW_STOP_S: Final = 2.0
_POLL_S: Final = 0.5
_SURE_POLLS: Final = 3
"""Consecutive polls that must agree: a broker that has just died still counts as a client for a moment."""
_SESSION: Final = re.compile(rb"\(session=(0x[0-9a-f]+)\)")
_LOG_TAIL_BYTES: Final = 65_536
_PARTITION: Final = re.compile(r".+-\d+")
"""The directory of a replica."""

_Port = Annotated[
    int,
    typer.Option(
        "--port",
        "-p",
        min=0,
        max=_LAST_PORT,
        help="Port of the first broker; the others use the following ports. 0 picks free ports.",
    ),
]
_Zookeeper = Annotated[
    str | None,
    typer.Option(
        "--zookeeper", metavar="HOST:PORT/CHROOT", help="ZooKeeper ensemble to use instead of the embedded server."
    ),
]
_Sasl = Annotated[
    str | None,
    typer.Option(
        "--sasl", metavar="MECHANISM", help="Require users with passwords: SCRAM-SHA-512, SCRAM-SHA-256 or PLAIN."
    ),
]


def up(
    brokers: Annotated[int, typer.Option("--brokers", "-n", min=1, max=100, help="Number of brokers.")] = 1,
    data_dir: Annotated[Path, typer.Option("--data-dir", "-d", help="Directory for all data.")] = Path("klamm-data"),
    port: _Port = 9092,
    zookeeper: _Zookeeper = None,
    config: Annotated[
        list[str], typer.Option("--config", "-c", metavar="KEY=VALUE", help="Setting for all brokers.")
    ] = [],  # noqa: B006
    tls: Annotated[
        bool, typer.Option("--tls", help="Encrypt connections, with certificates that klamm makes.")
    ] = False,
    sasl: _Sasl = None,
    acls: Annotated[
        bool, typer.Option("--acls", help="Deny what access control lists do not allow; needs --tls or --sasl.")
    ] = False,
    control_plane: Annotated[
        bool, typer.Option("--control-plane", help="Give every broker a second listener for the controller's requests.")
    ] = False,
    drill: Annotated[bool, typer.Option("--drill", help="Let the viewer break this cluster: a fault drill.")] = False,
    allow_changes: AllowChanges = False,
    dashboard_port: Annotated[
        int,
        typer.Option(
            "--dashboard-port", min=-1, max=_LAST_PORT, help="Port of the viewer; 0 picks a free one, -1 disables it."
        ),
    ] = 0,
) -> None:
    """Start a cluster on this machine and keep it running until Ctrl-C.

    With --drill, the viewer has buttons that kill, pause or cut off brokers, end their sessions, slow their disks and
    restart ZooKeeper. All connections then pass through this process, so it is not for measurements.

    Every broker serves /metrics on a free port of the loopback interface; --config klamm.metrics.port=-1 disables it.

    A broker that exits is not restarted. To restart it, run `klamm broker --config DATA_DIR/broker-1.properties` in
    another terminal. When all brokers have exited, ZooKeeper stops too, unless it still has clients, such as brokers
    that were started by hand.

    With --tls, --sasl or --acls, the certificates and passwords are in DATA_DIR/security, and client.properties in
    DATA_DIR is the --command-config of a super user. `klamm acl` grants other users access.
    With SCRAM, `klamm user add NAME` adds a user. With PLAIN, add it to "users" in DATA_DIR/security/users.json and
    start again. With --tls --acls only, `klamm tls issue DATA_DIR/security NAME` makes the certificate of User:NAME.
    """
    from klamm.config import KafkaConfig
    from klamm.local.local_cluster import LocalCluster

    if port and port + brokers - 1 > _LAST_PORT:
        fail(f"The ports of {brokers} brokers from {port} on end after {_LAST_PORT}. Choose a lower --port.")
    settings = parse_pairs(config, "--config")
    refuse_own_keys(settings)
    refuse_secrets(settings, "--config", _NO_FILE)
    KafkaConfig(settings, sources=dict.fromkeys(settings, "--config"))
    if zookeeper is not None:
        must_answer(zookeeper)
    if drill:
        refuse_drill_without(zookeeper, dashboard_port)
    refuse_less_security(data_dir, tls=tls, sasl=sasl, acls=acls, drill=drill)
    signals = _Signals()
    with DirectoryLock(data_dir):
        _warn_of_absent_brokers(data_dir, brokers)
        cluster = LocalCluster(
            brokers,
            tls=tls,
            sasl=sasl,
            acls=acls,
            data_dir=data_dir,
            zookeeper=zookeeper,
            ports=[port + i for i in range(brokers)] if port else (),
            defaults=UP_DEFAULTS | ({} if zookeeper is None else {"zookeeper.connection.timeout.ms": 18_000}),
            broker_configs=(CONTROL_PLANE if control_plane else {}) | settings,
            drill=drill,
        )
        started = time.monotonic()
        cluster.start_all()
        try:
            _announce(cluster, time.monotonic() - started)
            viewer = _dashboard(cluster, dashboard_port, allows_changes=allow_changes)
            with announced(cluster, cluster.write_client_properties()), viewer:
                _watch(cluster, signals, has_own_zookeeper=zookeeper is None)
        finally:
            _stop(cluster)
    note("Stopped; the data stays in " + str(data_dir) + ".")


def _announce(cluster: LocalCluster, seconds: float) -> None:
    count = len(cluster.broker_ids)
    note(f"{count} broker{'' if count == 1 else 's'} up in {seconds:.1f} s; data in {cluster.data_dir}; Ctrl-C stops.")
    say(f"{bold('bootstrap servers')} {cluster.bootstrap_servers}")
    if (path := cluster.write_client_properties()) is not None:
        say(f"{bold('clients')} --command-config {path}")
    addresses = [cluster.metrics_address(broker_id) for broker_id in cluster.broker_ids]
    if served := " ".join(f"http://{address}/metrics" for address in addresses if address is not None):
        say(f"{bold('metrics')} {served}")


@contextmanager
def _dashboard(cluster: LocalCluster, port: int, *, allows_changes: bool) -> Iterator[None]:
    """Serve the viewer beside the brokers, if its libraries are installed. It reads nothing until a page is open."""
    from klamm.cli.dashboard import live_source, open_server

    if port < 0 or not is_installed():
        yield
        return
    properties = cluster.write_client_properties()
    if properties is not None:
        # The viewer has no login. It must not lend a super user's rights to everyone on this machine unasked.
        servers = f"--bootstrap-server {cluster.bootstrap_servers}"
        say(f"{bold('dashboard')} klamm dashboard {servers} --command-config {properties}")
        yield
        return
    drill = None
    if cluster.has_drill:
        from klamm.dashboard.fault_drill import FaultDrill

        drill = FaultDrill(cluster)
    source = live_source(cluster.bootstrap_servers, allows_changes=allows_changes, drill=drill)
    with open_server(source, port=port, option="--dashboard-port") as server:
        say(f"{bold('dashboard')} {server.address}")
        try:
            yield
        finally:
            if drill is not None:
                drill.close()


def _watch(cluster: LocalCluster, signals: _Signals, *, has_own_zookeeper: bool) -> None:
    """Wait for a signal. Fail if ZooKeeper or the last broker exits; report the exit of any other broker.

    A fault drill ends brokers on purpose, so their exits are not reported.
    """
    running = list(cluster.broker_ids)
    while not signals.wait(_POLL_S):
        if cluster.has_drill:
            continue
        _refuse_lost_zookeeper(cluster)
        for broker_id in [each for each in running if not cluster.is_running(each)]:
            running.remove(broker_id)
            sentence = f"Broker {broker_id} has exited; see {cluster.logs(broker_id)}."
            if running:
                again = f"klamm broker --config {cluster.data_dir / f'broker-{broker_id}.properties'}"
                _warn(f"{sentence} Still running: {', '.join(map(str, running))}. To start it again: {again}")
        if not running:
            if has_own_zookeeper and _go_on_for_others(cluster, signals, sentence):
                return
            fail(f"{sentence} No broker of this cluster is running.")


def _go_on_for_others(cluster: LocalCluster, signals: _Signals, sentence: str) -> bool:
    """Keep ZooKeeper running while it has clients that are not brokers of ours; return whether a signal ended it."""
    seen = deque([True], _SURE_POLLS)
    has_warned = False
    while any(seen):
        if signals.wait(_POLL_S):
            return True
        _refuse_lost_zookeeper(cluster)
        seen.append(zookeeper_clients(cluster.zookeeper_connect) > 0)
        if not has_warned and len(seen) == _SURE_POLLS and all(seen):
            has_warned = True
            _warn(
                f"{sentence} No broker of this cluster is running, but ZooKeeper has other clients and keeps running "
                "for them. Ctrl-C stops it."
            )
    return False


def _refuse_lost_zookeeper(cluster: LocalCluster) -> None:
    if cluster.has_lost_zookeeper:
        fail(f"ZooKeeper has exited; see {cluster.data_dir / 'zookeeper.log'}.")


def zookeeper_clients(address: str) -> int:
    """Return the number of clients with a session that the ZooKeeper server reports; 0 if it does not answer."""
    import socket

    try:
        with socket.create_connection(parse_host_port(address), ZOOKEEPER_WAIT_S) as connection:
            connection.sendall(b"stat")
            with connection.makefile("rb") as answer:
                return sum(int(number, 16) != 0 for number in _SESSION.findall(answer.read()))
    except OSError:
        return 0


def _warn(sentence: str) -> None:
    note(f"{yellow('Warning:', sys.stderr)} {sentence}")


def _warn_of_absent_brokers(data_dir: Path, brokers: int) -> None:
    """Warn of data of brokers that are not started now."""
    absent = {}
    for path in data_dir.glob("broker-*/"):
        name = path.name.removeprefix("broker-")
        if path.is_dir() and name.isdecimal() and int(name) > brokers:
            absent[int(name)] = sum(_PARTITION.fullmatch(each.name) is not None for each in path.iterdir())
    for broker_id, partitions in sorted(absent.items()):
        if partitions:
            _warn(
                f"broker {broker_id} is not started, but {data_dir} holds "
                f"{partitions} partition{'' if partitions == 1 else 's'} of it: they are under-replicated, or offline "
                f"if no other replica is in sync. To start it, pass --brokers {max(absent)}."
            )


def _stop(cluster: LocalCluster) -> None:
    """Stop the brokers one after another, so that the next one takes over; report a slow stop."""
    note("Stopping.")
    problems = []
    for broker_id in [each for each in cluster.broker_ids if cluster.is_running(each)]:
        waits = threading.Timer(_SLOW_STOP_S, _report_slow_stop, (broker_id, cluster.logs(broker_id)))
        waits.daemon = True
        waits.start()
        try:
            cluster.stop(broker_id)
        except KlammError as error:
            problems.append(str(error))
        finally:
            waits.cancel()
    cluster.close()
    if problems:
        fail("\n".join(problems))


def _report_slow_stop(broker_id: int, log_path: Path) -> None:
    last = _last_warning(log_path)
    more = f" Its last warning: {last}" if last else ""
    note(f"Waiting for broker {broker_id} to hand over its leaderships; see {log_path}.{more}")


def _last_warning(log_path: Path) -> str | None:
    with suppress(OSError), log_path.open("rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
        lines = log.read().decode(errors="replace").splitlines()
        return next((line for line in reversed(lines) if " WARNING " in line), None)
    return None


class _Signals:
    """SIGINT and SIGTERM as a condition to wait for; one that arrived earlier ends the wait at once."""

    def __init__(self) -> None:
        self._reader, writer = os.pipe()
        os.set_blocking(writer, False)

        def arrived(number: int, frame: Any) -> None:
            os.write(writer, b"\0")

        signal.signal(signal.SIGINT, arrived)
        signal.signal(signal.SIGTERM, arrived)

    def wait(self, timeout_s: float) -> bool:
        import select

        return bool(select.select([self._reader], [], [], timeout_s)[0])


class DirectoryLock:
    """Make this process the only user of a data directory until it ends.

    A directory that was created for the lock and holds nothing else afterwards is removed.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: Any = None
        self._made: list[Path] = []

    def __enter__(self) -> DirectoryLock:
        import fcntl

        path = self._directory / ".lock"
        self._made = [each for each in (self._directory, *self._directory.parents) if not each.exists()]
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = path.open("a+")
        except OSError as error:
            raise Failure(f"The data directory {self._directory} cannot be used: {error.strerror}.") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = path.read_text().strip()
            self._file.close()
            raise Failure(
                f"The data directory {self._directory} is in use by another klamm"
                f"{f' (process {owner})' if owner else ''}. Stop that one, or choose another --data-dir."
            ) from None
        self._file.truncate(0)
        self._file.write(str(os.getpid()))
        self._file.flush()
        return self

    def __exit__(self, *_: object) -> None:
        self._file.truncate(0)
        if self._made and os.listdir(self._directory) == [".lock"]:
            (self._directory / ".lock").unlink()
            with suppress(OSError):
                for made in self._made:
                    made.rmdir()
        self._file.close()


def broker(
    config: Annotated[Path, typer.Option("--config", "-c", help="File with Kafka's keys, TOML or .properties.")],
    override: Annotated[
        list[str], typer.Option("--override", "-o", metavar="KEY=VALUE", help="Setting that overrides the file.")
    ] = [],  # noqa: B006
    log_format: Annotated[
        LogFormat, typer.Option("--log-format", help="Lines of text, or one JSON object per line.")
    ] = LogFormat.TEXT,
) -> None:
    """Run one broker in the foreground; SIGTERM stops it cleanly."""
    from klamm.config import KafkaConfig

    KafkaConfig.from_file(config, override)
    names = (setting.partition("=")[0].strip() for setting in override)
    refuse_secrets(names, "--override", f"Put it into {config}, with mode 0600.")
    overrides = [argument for setting in override for argument in ("--override", setting)]
    sys.stdout.flush()
    os.execv(
        sys.executable,
        [sys.executable, "-m", "klamm.server", "--config", str(config), *overrides, "--log-format", log_format],
    )
