"""SCRAM credentials of users, as they are stored: text by user and mechanism.

Owner: the broker loop. `/config/users` in ZooKeeper is authoritative; it also contains the quotas of users.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

SCRAM_MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")


class UserCredentials:
    """The texts are secrets: nothing logs or returns them, except to the check of a login."""

    def __init__(self) -> None:
        self._by_user: dict[str, dict[str, str]] = {}

    def get(self, mechanism: str, user: str) -> str | None:
        return self._by_user.get(user, {}).get(mechanism)

    def set_user(self, user: str, properties: Mapping[str, str]) -> None:
        """Replace the credentials of a user by those among all its settings."""
        own = {mechanism: properties[mechanism] for mechanism in SCRAM_MECHANISMS if mechanism in properties}
        if own:
            self._by_user[user] = own
        else:
            self._by_user.pop(user, None)

    def replace_all(self, users: Iterable[tuple[str, Mapping[str, str]]]) -> None:
        self._by_user.clear()
        for user, properties in users:
            self.set_user(user, properties)
