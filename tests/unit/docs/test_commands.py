"""Every command shown on a page exists in the command line and takes the options shown."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
import pytest
from logbus.cli import main
from logbus_broker.cli import COMMANDS as BROKER_COMMANDS
from logbus_broker.cli import parser as broker_parser

from tests.support.pages import PAGES, PROJECT, blocks

# A placeholder: COMMAND, ..., <this>. In place of a subcommand it ends the check, as a pipe ends a command.
PLACEHOLDER = re.compile(r"^(\.\.\.|<.*>|[A-Z][A-Z_]+)$")
COMMENT_OR_TARGET = re.compile(r"\s+(?:#|>).*")
BETWEEN = re.compile(r"\s(?:\|\|?|&&)\s|;\s")
INLINE = re.compile(r"`((?:python -m )?(?:logbus|logbus_broker) [^`]+)`")
MAKE = re.compile(r"^make ([a-z-]+)|`make ([a-z-]+)", re.MULTILINE)
TARGETS = set(re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE))


def shown_commands() -> Iterator[tuple[str, str]]:
    """The page and text of every command shown on a page."""
    for page in PAGES:
        name = str(page.relative_to(PROJECT))
        in_blocks = [line for block in blocks(page) for line in block.text.replace("\\\n", " ").splitlines()]
        for line in (*in_blocks, *INLINE.findall(page.read_text())):
            for command in BETWEEN.split(COMMENT_OR_TARGET.sub("", line)):
                if command.strip().startswith(("logbus ", "python -m logbus_broker", "python -m logbus ")):
                    yield name, command.strip()


COMMANDS = sorted(set(shown_commands()))


def test_the_pages_show_commands() -> None:
    assert len(COMMANDS) > 60


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_a_command_that_a_page_shows_is_taken_as_it_is_written(page: str, command: str) -> None:
    words = shlex.split(command)
    if words[0] == "python":
        words = ["logbus", "broker", *words[3:]] if words[2] == "logbus_broker" else words[2:]
    if words[1:2] == ["broker"]:
        check_broker(words[2:])
        return
    check(main, click.Context(main, info_name="logbus"), words[1:])


def check_broker(words: list[str]) -> None:
    """A command that is only named, or shown with placeholders, must exist; any other must parse."""
    if len(words) < 2 or any(PLACEHOLDER.match(word) for word in words):
        assert set(words[:1]) <= set(BROKER_COMMANDS)
    else:
        broker_parser().parse_args(words)


def check(command: click.Command, context: click.Context, words: list[str]) -> None:
    """Raises click's error where a word is not a subcommand or an option of the command."""
    if isinstance(command, click.Group):
        if not words or PLACEHOLDER.match(words[0]) or words[0] in ("--help", "--version"):
            return
        below = command.get_command(context, words[0])
        assert below is not None, f"{context.command_path} has no command {words[0]!r}"
        check(below, click.Context(below, info_name=words[0], parent=context), words[1:])
        return
    if "--help" in words or not words:
        return
    _, rest, _ = command.make_parser(context).parse_args(args=[word for word in words if word != "..."])
    assert not rest, f"{context.command_path} does not take {rest}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_make_target_that_a_page_names_is_there(page: object) -> None:
    named = {first or second for first, second in MAKE.findall(page.read_text())}  # type: ignore[attr-defined]
    assert named <= TARGETS
