"""SCRAM mechanisms as the credential APIs number them (KIP-554)."""

from __future__ import annotations

from typing import Final

MECHANISMS: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
NUMBERS: Final = {name: number for number, name in MECHANISMS.items()}
