"""`logbus completion SHELL`: the script that makes a shell complete commands, options, topics, groups and pipelines."""

from __future__ import annotations

from collections.abc import Mapping

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

PROGRAM = "logbus"
VARIABLE = "_LOGBUS_COMPLETE"


class WholeSentences(FishComplete):
    """click splits its answers at every comma, and with them the sentences behind the names; the first comma is the one."""

    source_template = FishComplete.source_template.replace('string split ","', 'string split --max 1 ","')


SHELLS: Mapping[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": WholeSentences}


@click.command("completion")
@click.argument("shell", type=click.Choice(list(SHELLS)))
def command(shell: str) -> None:
    """Print the completion script for SHELL.

    \b
    bash  echo 'eval "$(logbus completion bash)"' >> ~/.bashrc
    zsh   echo 'eval "$(logbus completion zsh)"' >> ~/.zshrc   # behind: autoload -Uz compinit && compinit
    fish  logbus completion fish > ~/.config/fish/completions/logbus.fish

    Bash must be 4.4 or newer. Names of topics, groups and pipelines are asked for at --bootstrap-server and --warehouse, or where
    LOGBUS_BOOTSTRAP_SERVER and LOGBUS_WAREHOUSE_URL point.
    """
    click.echo(script(shell))


def script(shell: str) -> str:
    """The script itself; it starts no other program, whereas click's own looks for bash's version."""
    from logbus.cli import main

    return ShellComplete.source(SHELLS[shell](main, {}, PROGRAM, VARIABLE))
