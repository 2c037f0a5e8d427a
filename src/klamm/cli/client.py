"""Access of the commands to a cluster: confluent-kafka, with its errors as sentences."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from klamm.cli.command_config import OPTION
from klamm.cli.command_config import current as command_config
from klamm.cli.output import Failure, fail, say
from klamm.cli.progress_line import ProgressLine
from klamm.cli.running_clusters import other_clusters, with_all_brokers
from klamm.client.patience import COMMAND_CHANGE, COMMAND_REQUEST, EXAMINATION, QUICK_ANSWER
from klamm.errors import KlammError
from klamm.model import parse_host_port

if TYPE_CHECKING:
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import AdminClient, ClusterMetadata

    from klamm.client.connection_problems import Problem
    from klamm.client.missing_rights import MissingRight

T = TypeVar("T")

BOOTSTRAP_VARIABLE: Final = "KLAMM_BOOTSTRAP_SERVERS"
DEFAULT_BOOTSTRAP: Final = "localhost:9092"
TIMEOUT_S: Final = COMMAND_REQUEST.request_s

BOOTSTRAP_NAMES: Final = ("--bootstrap-server", "--bootstrap-servers", "-b")
"""Kafka's tools use the first name, the settings of its clients the second one."""


def _without_option(ctx: typer.Context, value: str) -> str:
    """Return the servers of the file of --command-config, unless the option names others.

    They belong to the credentials in the file, so they have precedence over the environment. The default stands for all
    brokers of its cluster.
    """
    source = ctx.get_parameter_source("bootstrap_server")
    if ctx.resilient_parsing or (source is not None and source.name == "COMMANDLINE"):
        return value
    if (servers := command_config.bootstrap_servers) is not None:
        return servers
    return with_all_brokers(value) if source is not None and source.name == "DEFAULT" else value


BootstrapServer = Annotated[
    str,
    typer.Option(
        *BOOTSTRAP_NAMES,
        envvar=BOOTSTRAP_VARIABLE,
        metavar="HOST:PORT,...",
        callback=_without_option,
        help="Initial brokers to contact. The default includes all brokers of a `klamm up` that uses this port.",
    ),
]


_unshown: Final = logging.getLogger("klamm.librdkafka")
_unshown.addHandler(logging.NullHandler())
_unshown.propagate = False

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def client_config(servers: str, **settings: object) -> dict[str, Any]:
    """Return librdkafka's settings, with passwords. Its log is off: the commands report errors as sentences.

    Level 0 still has fatal errors of a producer, so the log also goes to a logger without output.
    """
    answering, silent = by_answer(servers)
    return {
        # librdkafka picks one of them and waits for it; it learns the addresses of all brokers from the first answer.
        "bootstrap.servers": ",".join(answering or silent),
        "client.id": "klamm-cli",
        "log_level": 0,
        "logger": _unshown,
        "error_cb": refusals.note,
        "socket.timeout.ms": int(TIMEOUT_S * 1000),
        **command_config.librdkafka,
        **{name.replace("_", "."): value for name, value in settings.items()},
    }


class Refusals:
    """Owns the last reason why a broker refused this client. librdkafka reports it beside the failed call."""

    def __init__(self) -> None:
        self._last = ""
        self.fatal: KafkaError | None = None
        """The error after which a producer sends nothing. It may come while no call fails."""

    def note(self, error: KafkaError) -> None:
        if error.fatal():
            self.fatal = error
        if error.name() in ("_AUTHENTICATION", "_SSL", "SASL_AUTHENTICATION_FAILED"):
            self._last = str(error.str()).strip().rstrip(".")

    def take(self) -> str:
        last, self._last = self._last, ""
        return last


refusals: Final = Refusals()


def admin_client(servers: str) -> AdminClient:
    """Return an AdminClient that has reached a broker."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient(client_config(servers))
    cluster_metadata(admin, servers)
    return admin


def no_such_topic(*names: str, operation: str = "DESCRIBE") -> str:
    """Return the sentence about topics that are not in the metadata. To a user without rights they look the same.

    `operation` is the one that the command needs.
    """
    listed = ", ".join(names)
    if not command_config.properties:
        return f"There is no topic {listed}."
    from klamm.cli.right_advice import on_topic, remedy

    needed = list(map(on_topic(operation), names))
    return f"There is no topic {listed}, or the user lacks {' and '.join(map(str, needed))}. {remedy(needed)}"


def cluster_metadata(admin: Any, servers: str, topic: str | None = None) -> ClusterMetadata:
    from confluent_kafka import KafkaException

    with ProgressLine() as line:
        if not _may_answer(servers, line):
            fail(_nobody(servers))
        try:
            if topic is None:
                metadata: ClusterMetadata = admin.list_topics(timeout=TIMEOUT_S)
            else:
                metadata = admin.list_topics(topic, timeout=TIMEOUT_S)
        except KafkaException as error:
            admin.poll(0)  # librdkafka reports a refused login here
            raise Failure(_why_silent(servers) if _is_local(error.args[0]) else explain(error.args[0])) from None
    return metadata


def _may_answer(servers: str, line: ProgressLine) -> bool:
    """Check first: librdkafka retries for a long time if nothing listens, or if the broker refuses the client.

    A broker that accepts the connection and is silent may still answer; the line names it meanwhile. Fails with the
    reason of a refusal.
    """
    from klamm.client.connection_problems import examine

    problem = None
    may_answer = False
    answering, silent = by_answer(servers)
    for server in (*answering, *silent):
        address = parse_address(server)
        try:
            try:
                found = examine(address, command_config.security, EXAMINATION.request_s, QUICK_ANSWER.request_s)
            except TimeoutError:
                line.show(None, f"Waiting for {server}, which accepts connections and does not answer ...")
                found = examine(address, command_config.security, EXAMINATION.request_s)
        except TimeoutError:
            may_answer = True
        except OSError:
            continue
        else:
            if found is None:
                return True
            problem = problem or found
    if problem is not None and not may_answer:
        fail(refusal(servers, problem))
    return may_answer


def by_answer(servers: str) -> tuple[list[str], list[str]]:
    """Return the servers that answer or refuse quickly, and those that are silent. One server alone is not asked."""
    from klamm.client.connection_problems import examine

    listed = servers.split(",")
    answering: list[str] = []
    silent: list[str] = []
    for server in listed:
        try:
            if len(listed) > 1:
                examine(parse_address(server), command_config.security, QUICK_ANSWER.request_s)
        except TimeoutError:
            silent.append(server)
            continue
        except OSError:
            pass
        answering.append(server)
    return answering, silent


def addresses_by_answer(servers: str) -> list[tuple[str, int]]:
    """Return the addresses of the servers, those that are silent last."""
    answering, silent = by_answer(servers)
    return [parse_address(server) for server in (*answering, *silent)]


def refusal(servers: str, problem: Problem) -> str:
    """Return the sentences about brokers that do not accept this client, or the reverse."""
    advice = _located(problem.advice, has_file=bool(command_config.properties))
    if not problem.is_kafka:
        return f"{problem.reason}. {advice}"
    return f"The brokers at {servers} and this client do not accept each other: {problem.reason}. {advice}"


def _located(advice: str, *, has_file: bool) -> str:
    where = f"in the file of {OPTION}" if has_file else f"in a file, and pass it with {OPTION}"
    return f"{advice.replace('{where}', where)}."


def parse_address(server: str) -> tuple[str, int]:
    """Parse host:port as the user gave it; fail with a sentence if it is something else."""
    try:
        return parse_host_port(server)
    except ValueError as error:
        raise Failure(str(error)) from None


def unreachable(servers: str) -> str:
    """Return why no broker answers."""
    try:
        with ProgressLine() as line:
            may_answer = _may_answer(servers, line)
    except Failure as refused:
        return str(refused)
    return _why_silent(servers) if may_answer else _nobody(servers)


def absence(servers: str) -> str | None:
    """Return the sentence about brokers that are not there yet; None if one answers. Fails with a refusal."""
    with ProgressLine() as line:
        return None if _may_answer(servers, line) else _nobody(servers)


def _nobody(servers: str) -> str:
    if others := other_clusters(servers):
        return f"No broker answers at {servers}. {others} Pass it with --bootstrap-server or {BOOTSTRAP_VARIABLE}."
    return (
        f"No broker answers at {servers}. Start one with `klamm up`, or name another with --bootstrap-server "
        f"or {BOOTSTRAP_VARIABLE}."
    )


def _why_silent(servers: str) -> str:
    """The brokers accept connections, but no request is answered."""
    if why := refusals.take():
        return f"The brokers at {servers} and this client do not accept each other: {why}. Check {OPTION}."
    return (
        f"No broker answers at {servers}. The port accepts connections: the broker is paused or overloaded, or another "
        f"program listens there. Compare the address, or name another with --bootstrap-server or {BOOTSTRAP_VARIABLE}."
    )


def result(future: Future[T], what: str = "", needed: MissingRight | None = None) -> T:
    """Return the result of an admin call. A broker's error becomes `what: the error`.

    If the broker refuses it, the error names the right that was needed.
    """
    from confluent_kafka import KafkaException

    try:
        return future.result(timeout=COMMAND_CHANGE.deadline_s)
    except KafkaException as error:
        text = explain(error.args[0])
        if needed is not None:
            from klamm.cli.right_advice import with_remedy

            text = with_remedy(text, needed)
        raise Failure(f"{what}: {text}" if what else text) from None
    except TimeoutError:
        raise Failure(f"{what or 'The request'}: no answer within {COMMAND_CHANGE.deadline_s:g} s.") from None


def results(
    futures: Mapping[str, Future[Any]],
    what: Callable[[str], str],
    success: str = "",
    needed: Callable[[str], MissingRight] | None = None,
) -> dict[str, Any]:
    """Return all results by name. Prints `success` with each name, and fails with all failures."""
    done: dict[str, Any] = {}
    problems: list[str] = []
    for name, future in futures.items():
        try:
            done[name] = result(future, what(name), None if needed is None else needed(name))
        except Failure as failure:
            problems.append(str(failure))
        else:
            if success:
                say(success.format(name))
    if problems:
        fail("\n".join(problems))
    return done


def explain(error: KafkaError) -> str:
    """`TOPIC_ALREADY_EXISTS: Topic 't' already exists.`"""
    name, text = error.name().lstrip("_"), str(error.str()).strip()
    sentence = text if text.endswith(".") else f"{text}."
    return sentence if _is_local(error) else f"{name}: {sentence}"


def sentence(error: Exception) -> str | None:
    """Return the message for an error that left a command; None if it can only be a bug in klamm."""
    from confluent_kafka import KafkaException

    from klamm.client.client_errors import AuthenticationError
    from klamm.client.connection_problems import advice_for

    if isinstance(error, AuthenticationError):
        return f"{str(error).rstrip('.')}. {_located(advice_for(str(error)), has_file=True)}"
    if isinstance(error, KlammError):
        return str(error)
    if isinstance(error, KafkaException):
        return explain(error.args[0])
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}." if error.filename else f"{error.strerror}."
    if isinstance(error, (ValueError, OSError)):
        text = str(error).strip() or type(error).__name__
        return text if text.endswith(".") else f"{text}."
    return None


def _is_local(error: KafkaError) -> bool:
    """Whether the error is librdkafka's own, not a broker's."""
    return int(error.code()) < -1


def parse_pairs(pairs: Iterable[str], option: str) -> dict[str, str]:
    """Parse `key=value` options. A value may contain an equals sign."""
    parsed: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            fail(f"{option} {pair!r} is not key=value.")
        parsed[name] = value
    return parsed


def default_servers() -> str:
    """Return the servers for a command whose option is not given. Raises ConfigError."""
    given = command_config.bootstrap_servers or os.environ.get(BOOTSTRAP_VARIABLE)
    return given or with_all_brokers(DEFAULT_BOOTSTRAP)
