"""`klamm quota list|describe|set|remove`: quotas of users and client ids."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from klamm.cli.client import DEFAULT_BOOTSTRAP, AsJson, BootstrapServer, parse_pairs
from klamm.cli.output import fail, say, table
from klamm.cli.principals import refuse_type

if TYPE_CHECKING:
    from klamm.config.client_quotas import QuotaEntity

app = typer.Typer(
    help="Show and change quotas: rates of producers, consumers, requests and topic changes.", no_args_is_help=True
)

User = Annotated[str | None, typer.Option("--user", "-u", metavar="NAME", help="The user, without User:.")]
DefaultUser = Annotated[bool, typer.Option("--default-user", help="All users without their own quota.")]
ClientId = Annotated[str | None, typer.Option("--client-id", "-c", metavar="ID", help="The client id.")]
DefaultClientId = Annotated[bool, typer.Option("--default-client-id", help="All client ids without their own quota.")]


@app.command("list")
def list_(as_json: AsJson = False, bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP) -> None:
    """List all quotas."""
    quotas = _quotas(bootstrap_server)
    if as_json:
        say(json.dumps([{"entity": _parts(entity), "quotas": dict(values)} for entity, values in quotas.items()]))
        return
    rows = [
        (_shown(entity.user), _shown(entity.client_id), key, _number(key, value))
        for entity, values in quotas.items()
        for key, value in values.items()
    ]
    table(("User", "ClientId", "Quota", "Value"), rows)


@app.command()
def describe(
    user: Annotated[
        str, typer.Option("--user", "-u", metavar="NAME", help="The user; clients without a login are ANONYMOUS.")
    ] = "ANONYMOUS",
    client_id: Annotated[str, typer.Option("--client-id", "-c", metavar="ID", help="The client id.")] = "",
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Show which quotas apply to a client, and where each of them is set."""
    from klamm.config.client_quotas import QUOTA_KEYS, QuotaEntity, QuotaLimits

    refuse_type(user)
    limits = {key: QuotaLimits() for key in QUOTA_KEYS}
    quotas = _quotas(bootstrap_server)
    for entity, values in quotas.items():
        for key, value in values.items():
            if key in limits:
                limits[key].set(entity, value)
    found = {key: each.source(user, client_id) for key, each in limits.items()}
    sources = {key: QuotaEntity(*source) for key, source in found.items() if source is not None}
    if as_json:
        applied = {key: {"value": quotas[source][key], "entity": _parts(source)} for key, source in sources.items()}
        say(json.dumps(applied))
        return
    rows = [
        (key, _number(key, quotas[sources[key]][key]), str(sources[key])) if key in sources else (key, "unlimited", "")
        for key in QUOTA_KEYS
    ]
    table(("Quota", "Value", "SetFor"), rows)


@app.command("set")
def set_(
    quotas: Annotated[
        list[str],
        typer.Argument(
            metavar="QUOTA=VALUE...",
            help="producer_byte_rate and consumer_byte_rate in bytes per second, request_percentage in percent of a"
            " broker's time, controller_mutation_rate in partitions per second.",
        ),
    ],
    user: User = None,
    default_user: DefaultUser = False,
    client_id: ClientId = None,
    default_client_id: DefaultClientId = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Set quotas of a user, a client id, or a client id of a user. Each broker applies them for itself."""
    refuse_type(user)
    entity = _entity(user, default_user, client_id, default_client_id)
    values = {key: _value(key, text) for key, text in parse_pairs(quotas, "quota").items()}
    _alter(bootstrap_server, entity, values, ())
    say(f"Set {', '.join(values)} of {entity}.")


@app.command()
def remove(
    quotas: Annotated[list[str] | None, typer.Argument(metavar="[QUOTA...]", help="The quotas to remove.")] = None,
    user: User = None,
    default_user: DefaultUser = False,
    client_id: ClientId = None,
    default_client_id: DefaultClientId = False,
    everything: Annotated[bool, typer.Option("--all", help="Remove all quotas of the user or client id.")] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Remove quotas of a user, a client id, or a client id of a user."""
    entity = _entity(user, default_user, client_id, default_client_id)
    if bool(quotas) == everything:
        fail("Pass the quotas to remove, or --all.")
    present = _quotas(bootstrap_server).get(entity, {})
    names = list(present) if everything else list(quotas or ())
    if missing := [name for name in names if name not in present]:
        fail(f"{missing[0]} of {entity} is not set: `klamm quota list` shows all quotas.")
    if not names:
        fail(f"There is no quota of {entity}: `klamm quota list` shows all quotas.")
    _alter(bootstrap_server, entity, {}, names)
    say(f"Removed {', '.join(names)} of {entity}.")


def _entity(user: str | None, default_user: bool, client_id: str | None, default_client_id: bool) -> QuotaEntity:
    from klamm.config.client_quotas import DEFAULT, QuotaEntity

    if (user is not None and default_user) or (client_id is not None and default_client_id):
        fail("Pass a name or the default, not both.")
    if user == "" or client_id == "":
        fail("A name is empty: use --default-user or --default-client-id for the default.")
    entity = QuotaEntity(DEFAULT if default_user else user, DEFAULT if default_client_id else client_id)
    if entity == (None, None):
        fail("Pass --user NAME, --default-user, --client-id ID or --default-client-id.")
    return entity


def _value(key: str, text: str) -> float:
    from klamm.config.client_quotas import quota_problem

    try:
        value = float(text)
    except ValueError:
        fail(f"{key}={text} is not a number.")
    if (problem := quota_problem(key, value)) is not None:
        fail(problem)
    return value


def _quotas(servers: str) -> dict[QuotaEntity, dict[str, float]]:
    from klamm.cli.broker_requests import ask_any
    from klamm.config.client_quotas import DEFAULT, QuotaEntity
    from klamm.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest, DescribeClientQuotasResponse

    request = DescribeClientQuotasRequest(components=[], strict=False)
    answer = ask_any(servers, request, 0, DescribeClientQuotasResponse)
    _check(answer.error_code, answer.error_message, "The quotas cannot be listed")
    found: dict[QuotaEntity, dict[str, float]] = {}
    for entry in answer.entries or ():
        names = {part.entity_type: DEFAULT if part.entity_name is None else part.entity_name for part in entry.entity}
        if names.keys() <= {"user", "client-id"}:  # a Kafka broker also knows quotas of addresses
            entity = QuotaEntity(names.get("user"), names.get("client-id"))
            found[entity] = {value.key: value.value for value in entry.values}
    return found


def _alter(servers: str, entity: QuotaEntity, values: Mapping[str, float], remove: Iterable[str]) -> None:
    from klamm.cli.broker_requests import ask_any
    from klamm.protocol.messages.alter_client_quotas import (
        AlterClientQuotasRequest,
        AlterClientQuotasResponse,
        EntityData,
        EntryData,
        OpData,
    )

    ops = [OpData(key=key, value=value, remove=False) for key, value in values.items()]
    ops += [OpData(key=key, value=0.0, remove=True) for key in remove]
    parts: Sequence[EntityData] = [
        EntityData(entity_type=kind, entity_name=name) for kind, name in _parts(entity).items()
    ]
    request = AlterClientQuotasRequest(entries=[EntryData(entity=parts, ops=ops)], validate_only=False)
    answer = ask_any(servers, request, 0, AlterClientQuotasResponse).entries[0]
    _check(answer.error_code, answer.error_message, f"The quotas of {entity} were not changed")


def _check(code: int, message: str | None, what: str) -> None:
    from klamm.errors import ErrorCode

    if code != ErrorCode.NONE:
        fail(f"{what}: {ErrorCode(code).name}: {message or 'the broker returned no reason.'}")


def _parts(entity: QuotaEntity) -> dict[str, str | None]:
    """The entity as Kafka's protocol names it: null is the default."""
    names = (("user", entity.user), ("client-id", entity.client_id))
    return {kind: name or None for kind, name in names if name is not None}


def _shown(name: str | None) -> str | None:
    return "<default>" if name == "" else name


def _number(key: str, value: float) -> str:
    from klamm.config.client_quotas import WHOLE_NUMBERS

    return str(round(value)) if key in WHOLE_NUMBERS else f"{value:g}"
