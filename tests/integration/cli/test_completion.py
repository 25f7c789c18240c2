"""What a shell gets on Tab: the scripts are valid, names come from a real broker and ledger, failures are silent."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner
from logbus.cli import main
from logbus.waiting import PATIENCE_SECONDS

from tests.support.broker import AnyBroker
from tests.support.commands import Run
from tests.support.programs import program_or_skip


def completed(*words: str, **environment: str) -> list[str]:
    """The completions bash gets for the last word; nothing else may be printed."""
    asked = {"_LOGBUS_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(("logbus", *words)), "COMP_CWORD": str(len(words))}
    done = CliRunner(env={**asked, **environment}).invoke(main, [], prog_name="logbus")
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_names_of_topics_groups_and_pipelines_are_offered(run: Run, broker: AnyBroker, warehouse_url: str, topic: str) -> None:
    run("topic", "create", topic, f"{topic}-b")
    run("produce", topic, stdin="x\n")
    run("consume", topic, "-G", f"group-of-{topic}")
    run("pipeline", "register", "orders", "--topic", topic, "--table", "t", "--parse", "lines", "--warehouse", warehouse_url)
    there = {"LOGBUS_BOOTSTRAP_SERVER": broker.bootstrap, "LOGBUS_WAREHOUSE_URL": warehouse_url}
    assert completed("consume", topic, **there) == [topic, f"{topic}-b"]
    assert completed("group", "describe", f"group-of-{topic}", **there) == [f"group-of-{topic}"]
    assert completed("window", "ls", "--pipeline", "or", **there) == ["orders"]


@pytest.mark.parametrize("words", [("consume", "t"), ("window", "ls", "--pipeline", "p")])
def test_what_does_not_answer_completes_to_nothing(words: tuple[str, ...]) -> None:
    nowhere = {"LOGBUS_BOOTSTRAP_SERVER": "127.0.0.1:1", "LOGBUS_WAREHOUSE_URL": "postgresql://u:secret@127.0.0.1:1/d"}
    assert completed(*words, **nowhere) == []


def test_commands_and_options_are_offered() -> None:
    assert completed("to") == ["topic"]
    assert {"--execute", "--if-exists"} <= set(completed("topic", "delete", "--"))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script_that_asks_us(run: Run, shell: str) -> None:
    script = run("completion", shell).stdout
    assert f"_LOGBUS_COMPLETE={shell}_complete" in script
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=script, text=True, timeout=PATIENCE_SECONDS, check=True)


PROMPT = "what next> "
TAB, TELL = b"\t", b"\x18\x18"

BASH = """
eval "$(logbus completion bash)"
COMP_WORDS=($1); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_logbus_completion logbus
printf '%s\n' "${COMPREPLY[@]}"
"""
FISH = "logbus completion fish | source; complete -C (string join ' ' $argv)"
# The completed line is written to a pipe, so that no screen has to be read.
ZSHRC = f"""
autoload -Uz compinit && compinit -u -D
eval "$(logbus completion zsh)"
tell() {{ print -r -- "$BUFFER" > "$ZDOTDIR/line"; exit }}
zle -N tell
bindkey '^X^X' tell
PROMPT={PROMPT!r}
"""


def environment(broker: AnyBroker) -> dict[str, str]:
    """An environment in which `logbus` is this checkout's."""
    own = {"LOGBUS_BOOTSTRAP_SERVER": broker.bootstrap}
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    return {**os.environ, **own, "PATH": path, "TERM": "xterm"}


def said_by(words: list[str], given: Mapping[str, str]) -> list[str]:
    done = subprocess.run(words, env=given, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True)
    assert done.stderr == ""
    return done.stdout.splitlines()


def in_bash(line: str, given: Mapping[str, str]) -> list[str]:
    """The words offered."""
    return said_by([program_or_skip("bash"), "--norc", "-c", BASH, "bash", line], given)


def in_fish(line: str, given: Mapping[str, str]) -> list[str]:
    """The words offered, each followed by a tab and its description."""
    return said_by([program_or_skip("fish"), "--no-config", "-c", FISH, line], given)


def in_zsh(line: str, given: Mapping[str, str], home: Path) -> str:
    """The line after Tab is pressed."""
    (home / ".zshrc").write_text(ZSHRC)
    os.mkfifo(home / "line")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 200, 0, 0))
    words = [program_or_skip("zsh"), "-d", "-i"]
    with subprocess.Popen(
        words, env={**given, "ZDOTDIR": str(home)}, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    ) as shell:
        os.close(theirs)
        shown = b""
        while PROMPT.encode() not in shown:
            shown += os.read(ours, 65536)
        os.write(ours, line.encode() + TAB + TELL)
        found = (home / "line").read_text()
        assert shell.wait(PATIENCE_SECONDS) == 0
    os.close(ours)
    return found.removesuffix("\n")


@pytest.fixture
def group(run: Run, topic: str) -> str:
    """A group whose name begins like no other."""
    run("topic", "create", topic)
    run("produce", topic, stdin="x\n")
    name = f"{topic}-readers"
    run("consume", topic, "-G", name)
    return name


def test_bash_offers_names_from_the_broker(broker: AnyBroker, group: str) -> None:
    assert in_bash(f"logbus group describe {group[:-1]}", environment(broker)) == [group]


def test_zsh_finishes_the_word(broker: AnyBroker, group: str, tmp_path: Path) -> None:
    assert in_zsh(f"logbus group describe {group[:-1]}", environment(broker), tmp_path) == f"logbus group describe {group} "


def test_fish_offers_commands_with_the_whole_sentence_behind(broker: AnyBroker, group: str) -> None:
    assert in_fish("logbus to", environment(broker)) == ["topic\tList, create, describe, change and delete topics."]
    assert in_fish(f"logbus group describe {group[:-1]}", environment(broker)) == [group]
