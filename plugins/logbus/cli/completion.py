"""`logbus completion SHELL`: the script that makes a shell complete commands, options and names; and these names.

Names of topics and groups come from the broker, those of pipelines from the ledger, if they answer at once: the user is waiting
between two keys. What does not answer within a second completes to nothing, and nothing is ever printed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from logbus.cli import output

PROGRAM = "logbus"
VARIABLE = "_LOGBUS_COMPLETE"


class WholeSentences(FishComplete):
    """click's script splits each answer at every comma, and so the help text after the name; only the first one separates."""

    source_template = FishComplete.source_template.replace('string split ","', 'string split --max 1 ","')


SHELLS: Mapping[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": WholeSentences}


@click.command("completion")
@click.argument("shell", type=click.Choice(list(SHELLS)))
def command(shell: str) -> None:
    """Print the completion script for SHELL.

    \b
    bash  echo 'eval "$(logbus completion bash)"' >> ~/.bashrc
    zsh   echo 'eval "$(logbus completion zsh)"' >> ~/.zshrc   # after: autoload -Uz compinit && compinit
    fish  logbus completion fish > ~/.config/fish/completions/logbus.fish

    Bash must be 4.4 or newer. Names of topics and groups come from --bootstrap-server, those of pipelines from --warehouse, or
    from where LOGBUS_BOOTSTRAP_SERVER and LOGBUS_WAREHOUSE_URL point.
    """
    program = click.get_current_context().find_root().command
    # The base class's `source`: bash's own starts another program to check bash's version.
    output.write_raw(ShellComplete.source(SHELLS[shell](program, {}, PROGRAM, VARIABLE)) + "\n")


SECONDS_MAX = 1.0
Ask = Callable[[click.Context], Iterable[str]]


def completer(ask: Ask, seconds_max: float = SECONDS_MAX) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """The names that begin with what was typed; none if anything fails."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        found_names: list[str] = []

        def names() -> None:
            with suppress(Exception):
                found_names.extend(ask(ctx))

        # In a thread that ends with the process: libpq waits two seconds at least for a server that does not answer.
        asking = Thread(target=names, daemon=True)
        asking.start()
        asking.join(seconds_max)
        # Nobody can type a name that is not printable, and a shell would pass it on to the terminal.
        return sorted(name for name in found_names if name.startswith(incomplete) and name.isprintable())

    return complete


def client(ctx: click.Context) -> Any:
    from logbus.kafka.client import Client
    from logbus.kafka.client_config import read_client_config

    given = ctx.params.get("bootstrap") or os.environ.get("LOGBUS_BOOTSTRAP_SERVER") or "127.0.0.1:9092"
    path = ctx.params.get("client_config") or os.environ.get("LOGBUS_CLIENT_CONFIG")
    settings = read_client_config(Path(path)) if path else {}
    return Client.for_page({"bootstrap.servers": given, **settings, "log_level": 0}, SECONDS_MAX)


def topics(ctx: click.Context) -> Iterable[str]:
    return [str(name) for name in client(ctx).metadata().topics]


def groups(ctx: click.Context) -> Iterable[str]:
    broker = client(ctx)
    broker.metadata()  # fails at once if no broker answers, which listing groups does not
    return [str(group.group_id) for group in broker.ask_group_names().result(SECONDS_MAX).valid]


def in_ledger(table: str) -> Ask:
    """The names in one of the ledger's tables."""

    def names(ctx: click.Context) -> Iterable[str]:
        import psycopg

        url = str(ctx.params.get("warehouse_url") or os.environ["LOGBUS_WAREHOUSE_URL"])
        rest = url.partition("://")[2]  # without SQLAlchemy's driver name
        with psycopg.connect(f"postgresql://{rest}", connect_timeout=int(2 * SECONDS_MAX)) as connection:
            return [str(name) for (name,) in connection.execute(f"select name from logbus.{table}".encode())]

    return names


complete_topics = completer(topics)
complete_groups = completer(groups)
complete_pipelines = completer(in_ledger("pipeline"))
complete_streams = completer(in_ledger("stream"))
