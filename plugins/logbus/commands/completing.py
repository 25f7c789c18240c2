"""Names for the shell's completion: topics and groups from the broker, pipelines from the ledger, if they answer at once.

The user is waiting between two keys: what does not answer within a second completes to nothing, and nothing is ever printed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import click

SECONDS_MAX = 1.0
Ask = Callable[[click.Context], Iterable[str]]


def completer(ask: Ask, seconds_max: float = SECONDS_MAX) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """The names that begin with what was typed; none if anything fails."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        found: list[str] = []

        def names() -> None:
            with suppress(Exception):
                found.extend(ask(ctx))

        # In a thread that ends with the process: libpq waits two seconds at least for a server that does not answer.
        asking = Thread(target=names, daemon=True)
        asking.start()
        asking.join(seconds_max)
        # Nobody can type a name that is not printable, and a shell would pass it on to the terminal.
        return sorted(name for name in found if name.startswith(incomplete) and name.isprintable())

    return complete


def client(ctx: click.Context) -> Any:
    from logbus.kafka.client import Client

    given = ctx.params.get("bootstrap") or os.environ.get("LOGBUS_BOOTSTRAP_SERVER") or "127.0.0.1:9092"
    path = ctx.params.get("client_config") or os.environ.get("LOGBUS_CLIENT_CONFIG")
    settings = json.loads(Path(path).read_text()) if path else {}
    return Client.of_a_picture({"bootstrap.servers": given, **settings, "log_level": 0}, SECONDS_MAX)


def topics(ctx: click.Context) -> Iterable[str]:
    return [str(name) for name in client(ctx).metadata().topics]


def groups(ctx: click.Context) -> Iterable[str]:
    asked = client(ctx)
    asked.metadata()  # fails at once if no broker answers, which listing groups does not
    return [str(group.group_id) for group in asked.ask_group_names().result(SECONDS_MAX).valid]


def pipelines(ctx: click.Context) -> Iterable[str]:
    import psycopg

    url = str(ctx.params.get("warehouse_url") or os.environ["LOGBUS_WAREHOUSE_URL"])
    rest = url.partition("://")[2]  # without SQLAlchemy's driver name
    with psycopg.connect(f"postgresql://{rest}", connect_timeout=int(2 * SECONDS_MAX)) as connection:
        return [str(name) for (name,) in connection.execute("select name from logbus.pipeline")]


complete_topics = completer(topics)
complete_groups = completer(groups)
complete_pipelines = completer(pipelines)
