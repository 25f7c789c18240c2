"""`logbus completion SHELL`: the script that makes a shell complete commands, options, topics, groups and pipelines."""

from __future__ import annotations

from collections.abc import Mapping

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from logbus.commands import output

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
    output.hand_over(ShellComplete.source(SHELLS[shell](program, {}, PROGRAM, VARIABLE)) + "\n")
