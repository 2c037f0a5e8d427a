"""Notes about listings that lack what the user may not describe."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING

from klamm.cli.client import TIMEOUT_S, addresses_by_answer
from klamm.cli.output import note
from klamm.cli.right_advice import remedy

if TYPE_CHECKING:
    from klamm.client.blocking_connection import BlockingConnection
    from klamm.client.missing_rights import MissingRight


class Listing(StrEnum):
    """Resources that brokers leave out of listings if the user may not describe them."""

    TOPICS = "Topics"
    GROUPS = "Groups"
    TRANSACTIONS = "Transactional ids"


def note_limits(servers: str, listing: Listing) -> None:
    """Print a note if the listing before it lacks resources that the user may not describe."""
    missing = ask_any_broker(servers, _question(listing))
    if missing:
        lacks = " and ".join(map(str, missing))
        note(f"{listing} that the user may not describe are not shown: the user lacks {lacks}. {remedy(missing)}")


def _question(listing: Listing) -> Callable[[BlockingConnection], list[MissingRight]]:
    from klamm.client import missing_rights

    return {
        Listing.TOPICS: missing_rights.missing_for_topics,
        Listing.GROUPS: missing_rights.missing_for_groups,
        Listing.TRANSACTIONS: missing_rights.missing_for_transactions,
    }[listing]


def ask_any_broker(servers: str, question: Callable[[BlockingConnection], list[MissingRight]]) -> list[MissingRight]:
    """Return the rights that the user lacks; none if no broker answers, which the command itself reports."""
    from klamm.cli.broker_requests import connect

    for address in addresses_by_answer(servers):
        try:
            with connect(address, TIMEOUT_S) as connection:
                return question(connection)
        except OSError:
            continue
    return []
