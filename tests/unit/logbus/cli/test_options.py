from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from logbus.cli import exporter, load, main, options, pipeline, ship
from logbus.cli.topic import TopicSettings
from logbus.loading import Load
from logbus.model import Pipeline
from logbus.status.replay import Span


@click.command()
@options.topics_argument(required=True)
@options.with_broker
def asking(topics: Sequence[str], config: Mapping[str, Any]) -> None:
    click.echo(json.dumps([topics, config]))


def ask(*words: str, **environment: str) -> Result:
    return CliRunner(env={"LOGBUS_BOOTSTRAP_SERVER": None, "LOGBUS_CLIENT_CONFIG": None, **environment}).invoke(asking, words)


def test_topics_come_as_arguments_or_as_kafka_spells_them_each_once() -> None:
    assert json.loads(ask("a", "--topic", "b", "--topic", "a").stdout)[0] == ["a", "b"]
    assert "name at least one TOPIC" in ask().stderr


def test_the_broker_is_named_by_option_or_environment_and_settings_go_before_files(tmp_path: Path) -> None:
    file = tmp_path / "client.json"
    file.write_text('{"security.protocol": "SSL", "client.id": "file"}')
    assert json.loads(ask("t").stdout)[1] == {"bootstrap.servers": "127.0.0.1:9092"}
    assert json.loads(ask("t", LOGBUS_BOOTSTRAP_SERVER="b:1").stdout)[1] == {"bootstrap.servers": "b:1"}
    shown = ask("t", "-b", "b:2", "--client-config", str(file), "-X", "client.id=mine").stdout
    assert json.loads(shown)[1] == {"bootstrap.servers": "b:2", "security.protocol": "SSL", "client.id": "mine"}


@pytest.mark.parametrize("name", ["sasl.password", "ssl.key.password", "sasl.oauthbearer.client.secret", "ssl.key.pem"])
def test_what_nobody_may_read_does_not_belong_on_a_command_line(name: str) -> None:
    result = ask("t", "-X", f"{name}=hunter2")
    assert result.exit_code == 2
    assert "put it into --client-config FILE" in result.stderr
    assert "hunter2" not in result.output


@pytest.mark.parametrize(
    ("words", "way_out"),
    [
        (("lag", "--warehouse", "postgresql://ann:hunter2@h/d"), "pass the URL in LOGBUS_WAREHOUSE_URL, or leave it out"),
        (("lag", "--warehouse", "postgresql://h/d?user=ann&password=hunter2"), "~/.pgpass or PGPASSWORD"),
        (("audit-table", "t", "--topic", "t", "--database", "postgresql://ann:hunter2@h/d"), "others can read: leave it out and"),
        (("load", "--pipeline", "p", "--remote", "sc://h:15002/;token=hunter2"), "pass the URL in SPARK_REMOTE"),
    ],
)
def test_a_url_on_a_command_line_holds_no_password(words: Sequence[str], way_out: str) -> None:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(main, words)
    assert (result.exit_code, way_out in " ".join(result.stderr.split())) == (2, True), result.stderr
    assert "hunter2" not in result.output


@pytest.mark.parametrize("content", ["[]", "no json"])
def test_a_file_of_settings_that_is_none_is_said(tmp_path: Path, content: str) -> None:
    (tmp_path / "client.json").write_text(content)
    result = CliRunner().invoke(main, ["topic", "ls", "--client-config", str(tmp_path / "client.json")])
    assert result.exit_code == 1
    assert "client settings" in result.stderr


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("a=1", (("a", "1"),)),
        ("retention.ms=1,retention.bytes=2", (("retention.ms", "1"), ("retention.bytes", "2"))),
        ("cleanup.policy=compact,delete", (("cleanup.policy", "compact,delete"),)),
        ("cleanup.policy=[compact,delete],retention.ms=1", (("cleanup.policy", "compact,delete"), ("retention.ms", "1"))),
        ("a=", (("a", ""),)),
    ],
)
def test_settings_are_given_as_kafka_configs_takes_them(text: str, settings: tuple[tuple[str, str], ...]) -> None:
    assert TopicSettings().convert(text, None, None) == settings


@pytest.mark.parametrize(
    "words",
    [
        ("topic", "alter", "t"),
        ("topic", "config", "t", "--alter"),
        ("topic", "config", "t", "--describe", "--add-config", "a=b"),
        ("topic", "create", "t", "--config", "retention"),
        ("group", "describe"),
        ("group", "describe", "g", "--all-groups"),
        ("consume", "t", "-f", "-e"),
        ("consume", "t", "-f", "-o", "e@1"),
        ("consume", "t", "-o", "somewhere"),
        ("consume", "t", "--format", "%y"),
        ("consume", "t", "--format", "%s", "-J"),
        ("produce", "t", "-D", ""),
    ],
)
def test_what_cannot_be_meant_is_a_matter_of_usage_and_asks_nobody(words: tuple[str, ...]) -> None:
    assert CliRunner().invoke(main, [*words, "-b", "127.0.0.1:1"]).exit_code == 2


@pytest.mark.parametrize(("text", "hours"), [("36", 36.0), ("0", 0.0), ("1.5", 1.5), ("36h", 36.0), ("7d", 168.0), ("90m", 1.5)])
def test_hours_have_the_units_that_people_write(text: str, hours: float) -> None:
    assert options.Hours().convert(text, None, None) == hours


@pytest.mark.parametrize("text", ["abc", "-1", "7 days", "1w", ""])
def test_what_is_no_number_of_hours_is_shown_how_to_write_it(text: str) -> None:
    with pytest.raises(click.BadParameter, match="write it like 36, 36h or 7d"):
        options.Hours().convert(text, None, None)


def test_a_pipeline_in_the_place_of_an_instant_is_recognised() -> None:
    result = CliRunner().invoke(main, ["window", "show", "web", "2015-05-20T20"])
    assert result.exit_code == 2
    assert "'web' is not an instant; write it like 2015-05-17T10:00:00Z; a pipeline is named by --pipeline web" in result.stderr
    assert "--pipeline" not in CliRunner().invoke(main, ["load", "--since", "yesterday"]).stderr
    assert "--pipeline 2015" not in CliRunner().invoke(main, ["window", "show", "2015-05-20 20 h"]).stderr


BY_WRAPPERS = {"bootstrap", "client_config", "client_settings", "output_form", "is_json", *load.SPARK_OPTIONS}
PASSED_ON: list[tuple[click.Command, Callable[..., Any]]] = [
    *((ship.command, ship.ship), (load.command, Load), (load.show_plan, Span), (load.run, Span)),
    *((pipeline.register, Pipeline), (exporter.command, exporter.make_sources)),
]


@pytest.mark.parametrize(("command", "taker"), PASSED_ON)
def test_options_that_a_command_only_passes_on_have_the_names_of_what_takes_them(
    command: click.Command, taker: Callable[..., Any]
) -> None:
    assert command.callback is not None
    own = inspect.signature(inspect.unwrap(command.callback)).parameters.keys()
    passed_on = {str(option.name) for option in command.params} - own - BY_WRAPPERS
    assert passed_on
    assert passed_on <= inspect.signature(taker).parameters.keys()
