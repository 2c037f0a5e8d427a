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
one is set to another value than its default. Keys marked = accept only their default. A change at run time is told in
the broker's log, with the key and its new value.

## Who sets what

`klamm broker` takes the defaults below as they are, Kafka's. So a lone broker has no consumer groups until it is told
`offsets.topic.replication.factor=1`; its log says so.

`klamm up` sets `broker.id`, `listeners`, `log.dirs` and `zookeeper.connect`, and these, which `--config KEY=VALUE`
overrides: `offsets.topic.replication.factor` and `klamm.control.log.replication.factor` are the number of brokers, at
most 3; `zookeeper.session.timeout.ms` is 6000; `group.initial.rebalance.delay.ms` is 0;
`controlled.shutdown.retry.backoff.ms` is 200; `zookeeper.connection.timeout.ms` is 60000, and 18000 with `--zookeeper`.

`LocalCluster` and the pytest fixtures ([testing.md](testing.md)) set the same four and factors, and more for the sake
of short tests, which `broker_configs` overrides: `zookeeper.session.timeout.ms` is 2000, of a lone broker 30000;
`zookeeper.connection.timeout.ms` is `start_timeout_s`; `replica.lag.time.max.ms` is 2000;
`replica.fetch.wait.max.ms` is 200; `controlled.shutdown.retry.backoff.ms` is 100;
`group.initial.rebalance.delay.ms` is 0; `offsets.topic.num.partitions` is 4; `klamm.control.log.enable` is false;
`klamm.unclean.replica.wait.ms` is 10000.

## Metrics

A Prometheus endpoint is there when a port is given:

```
klamm up --config klamm.metrics.port=9404          # every broker needs a port of its own: with -n 3, use 0
curl http://127.0.0.1:9404/metrics
```

The names are those that Kafka's metrics have behind the usual rules of the JMX exporter, such as
`kafka_server_replicamanager_underreplicatedpartitions`. With port 0 each broker takes a free one, and says which:
`klamm config describe --broker 1` shows it as `klamm.metrics.port`, `klamm cluster status` finds it, and the ready file
(`broker-1.ready` in the data directory of `klamm up`) has it as `metrics_port`. `klamm.metrics.host` is the address to
listen on, `127.0.0.1` unless set.
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
