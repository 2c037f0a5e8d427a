"""A SCRAM credential for a new password, in the form that Kafka keeps in ZooKeeper."""

from __future__ import annotations

import os

from klamm.security.sasl.scram_credential import MIN_ITERATIONS, SALT_BYTES, credential_of, salted_password


def scram_text(mechanism: str, password: str, iterations: int = MIN_ITERATIONS) -> str:
    """Hash a password with a new salt. This takes milliseconds."""
    salt = os.urandom(SALT_BYTES)
    return credential_of(mechanism, salted_password(mechanism, password, salt, iterations), salt, iterations).to_text()
