"""docs/configuration.md, written from the declarations: `python -m klamm.config.docs docs/configuration.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from klamm.config.definition import AnyKey, Support
from klamm.config.kafka_config import BROKER_KEYS
from klamm.config.topic_keys import TOPIC_KEYS

_HEAD = """\
# Configuration

Written by `python -m klamm.config.docs docs/configuration.md` from the declarations in `src/klamm/config/`; do not edit
it by hand.

A broker reads Kafka's keys from a TOML file (tables are flattened: `[log]` with `dirs = "data"` is `log.dirs`) or a
Java `.properties` file. Precedence, strongest first: dynamic settings of the broker, dynamic defaults of the cluster,
the command line, the file, the default. An unknown key, a value that its key does not accept, and a key of something
klamm does not have (TLS, SASL, KRaft, tiered storage, ...) stop the start with a sentence that names the key and where
it stands.

*Update* says whether a running broker takes a new value: `cluster-wide` keys can be set for all brokers or for one.
Keys marked ○ are accepted because files and tools of Kafka carry them; they have no effect, and the broker says so when
one is set to another value than its default. Keys marked = accept only their default.
"""
_MARKS = {Support.HONOURED: "", Support.NO_EFFECT: " ○", Support.ONLY_DEFAULT: " ="}


def render() -> str:
    return (
        _HEAD
        + "\n## Broker\n\n| key | type | default | update | what it is |\n|---|---|---|---|---|\n"
        + _rows(BROKER_KEYS.values(), is_topic=False)
        + "\n## Topic\n\n| key | type | default of Kafka | broker keys that give the default | what it is |\n"
        + "|---|---|---|---|---|\n"
        + _rows(TOPIC_KEYS.values(), is_topic=True)
    )


def _rows(keys: Iterable[AnyKey], *, is_topic: bool) -> str:
    return "".join(
        f"| `{key.name}`{_MARKS[key.support]} | {key.kind.name.lower()} | {_default(key)} | {_third(key, is_topic)} | "
        f"{key.doc} |\n"
        for key in keys
    )


def _third(key: AnyKey, is_topic: bool) -> str:
    if not is_topic:
        return key.update_mode.value
    return ", ".join(f"`{synonym}`" for synonym in key.synonyms) or "-"


def _default(key: AnyKey) -> str:
    if key.default is None:
        return "-"
    return f"`{key.default_text}`" if key.default_text else "(empty)"


def main(arguments: list[str]) -> None:
    text = render()
    if arguments:
        Path(arguments[0]).write_text(text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main(sys.argv[1:])
