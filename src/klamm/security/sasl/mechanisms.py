"""The names of the SASL mechanisms that klamm has."""

from __future__ import annotations

from typing import Final

PLAIN: Final = "PLAIN"
SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"
OAUTHBEARER: Final = "OAUTHBEARER"
KLAMM_PEER: Final = "KLAMM-PEER"
"""SCRAM-SHA-256 over the cluster's own secret, by which a broker proves its id to another one."""

SCRAM: Final = (SCRAM_SHA_256, SCRAM_SHA_512)
FOR_CLIENTS: Final = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER)
