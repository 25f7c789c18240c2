"""`logbus completion SHELL`: the script that makes a shell complete commands, options, topics, groups and pipelines."""

from __future__ import annotations

from collections.abc import Mapping

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

PROGRAM = "logbus"
VARIABLE = "_LOGBUS_COMPLETE"
SHELLS: Mapping[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command("completion")
@click.argument("shell", type=click.Choice(list(SHELLS)))
def command(shell: str) -> None:
    """Print the completion script for SHELL.

    \b
    bash  echo 'eval "$(logbus completion bash)"' >> ~/.bashrc
    zsh   echo 'eval "$(logbus completion zsh)"' >> ~/.zshrc
    fish  logbus completion fish > ~/.config/fish/completions/logbus.fish

    Bash must be 4.4 or newer. Names of topics, groups and pipelines are asked for at --bootstrap-server and --warehouse, or where
    LOGBUS_BOOTSTRAP_SERVER and LOGBUS_WAREHOUSE_URL point.
    """
    click.echo(script(shell))


def script(shell: str) -> str:
    """The script itself; it starts no other program, whereas click's own looks for bash's version."""
    from logbus.cli import main

    return ShellComplete.source(SHELLS[shell](main, {}, PROGRAM, VARIABLE))
