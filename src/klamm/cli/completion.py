"""Completion of topic names in the shell. It must be quick and silent: without a cluster, nothing is suggested."""

from __future__ import annotations

from typing import Annotated

import typer


def topic_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the topics that start with the text, without internal ones unless it starts with an underscore."""
    from klamm.cli.client import client_config, default_servers
    from klamm.client.patience import COMPLETION

    try:
        from confluent_kafka.admin import AdminClient

        servers = ctx.params.get("bootstrap_server") or default_servers()
        found = AdminClient(client_config(servers)).list_topics(timeout=COMPLETION.request_s).topics
    except Exception:  # A message would disturb the line that the user is typing.
        return []
    is_internal = incomplete.startswith("_")
    return sorted(name for name in found if name.startswith(incomplete) and name.startswith("_") <= is_internal)


TopicName = Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=topic_names)]
