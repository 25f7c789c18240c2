"""The reference of the command line, from click and argparse: for each command the same as `--help`."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from unittest import mock

import click
from logbus.cli import main
from logbus_broker import cli as broker_cli

from scripts.site.markdown import code, plain, table

PROGRAM = "logbus"
BROKER = "broker"  # passes its arguments on to a separate program
HELP_COLUMNS = 120

INTRODUCTION = """# Command line

Made from the commands themselves: `logbus COMMAND --help` says the same. [The command line](../cli.md) tells what they have in
common.

"""


def command_page() -> str:
    """All commands, one after another."""
    return INTRODUCTION + "\n".join(sections(main, click.Context(main, info_name=PROGRAM), level=2))


def sections(group: click.Group, context: click.Context, *, level: int) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        child = click.Context(command, info_name=name, parent=context)
        yield f"{'#' * level} {child.command_path}\n"
        if name == BROKER and level == 2:
            yield from broker_sections()
            continue
        yield from described(command, child)
        if isinstance(command, click.Group):
            yield from sections(command, child, level=level + 1)


def described(command: click.Command, context: click.Context) -> Iterator[str]:
    yield help_text(command)
    if isinstance(command, click.Group) and not command.params:
        return
    pieces = " ".join(command.collect_usage_pieces(context))
    yield f"```text\n{context.command_path} {pieces}\n```\n"
    if rows := list(option_rows(command, context)):
        yield table(("option", "meaning"), rows) + "\n"


def help_text(command: click.Command) -> str:
    """The command's help; a paragraph marked for click not to wrap keeps its lines."""
    paragraphs = (command.help or "").split("\n\n")
    return "\n\n".join(as_paragraph(paragraph) for paragraph in paragraphs) + "\n"


def as_paragraph(text: str) -> str:
    if text.startswith("\b\n"):
        return f"```text\n{text.removeprefix(chr(8)).strip()}\n```"
    return plain(" ".join(text.split()))


def option_rows(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and "--help" not in parameter.opts:
            names, text = record
            yield code(names), "; ".join([plain(text), *variables(parameter)])


def variables(parameter: click.Parameter) -> list[str]:
    """The environment variables that can be used instead, if the help does not name them."""
    if getattr(parameter, "show_envvar", False):
        return []
    names = [parameter.envvar] if isinstance(parameter.envvar, str) else parameter.envvar or []
    return [f"or ${name}" for name in names]


def broker_sections() -> Iterator[str]:
    """The broker's program has its own parser; its help is shown as it is."""
    yield "The broker by itself: `python -m logbus_broker` is the same. Its settings have [their own page](broker-settings.md).\n"
    for name in broker_cli.COMMANDS:
        yield f"### {PROGRAM} {BROKER} {name}\n\n```text\n{broker_help(name)}\n```\n"


def broker_help(name: str) -> str:
    shown = io.StringIO()
    wide = mock.patch.dict(os.environ, COLUMNS=str(HELP_COLUMNS))
    with wide, contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        broker_cli.main([name, "--help"])
    return shown.getvalue().strip()
