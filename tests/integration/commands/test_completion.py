"""What a shell gets on Tab: the scripts are valid, names come from a real broker and ledger, failures are silent."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner, Result
from logbus.cli import main
from logbus.kafka.client import Client
from logbus.kafka.topics import Topics
from logbus.ledger.ledger import Ledger
from logbus.model import Pipeline
from logbus.waiting import PATIENCE_SECONDS
from logbus.warehouse.engine import connect

from tests.support.broker import AnyBroker

Run = Callable[..., Result]


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
    log = Topics(Client({"bootstrap.servers": broker.bootstrap}))
    Ledger(connect(warehouse_url)).register(
        Pipeline(name="orders", topic=topic, table="t", parse="lines"), log, datetime.now(UTC)
    )
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
