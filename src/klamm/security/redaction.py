"""Settings that may be printed: values of secret keys are hidden."""

from __future__ import annotations

import re
from typing import Final

from klamm.security.secret import HIDDEN

_SECRET: Final = re.compile(r"password|secret|jaas|token|\.key$|key\.pem$|truststore\.certificates$", re.I)
SPARK_REDACTION: Final = r"(?i)secret|password|token|access[.]?key|jaas|[.]pem$|keystore[.]key$"
"""Spark's default of `spark.redaction.regex`, with the keys of Kafka's clients that it lacks."""


def is_secret(name: str) -> bool:
    return _SECRET.search(name) is not None


class HiddenSecrets(dict[str, str]):
    """Settings of a client. Its text form has no secrets; its values are complete."""

    def __repr__(self) -> str:
        return repr({name: HIDDEN if is_secret(name) else value for name, value in self.items()})

    __str__ = __repr__
