"""A Kafka with TLS, SASL and an authorizer, as a data engineer has it: which settings connect, with which rights, and what each error says."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from confluent_kafka.admin import NewTopic
from logbus.cli import main
from logbus.errors import AccessDenied, LogbusError, ProduceFailed, UserError
from logbus.kafka import cluster
from logbus.kafka.client import Client
from logbus.kafka.client_config import read_client_config
from logbus.kafka.exact_reader import read_range
from logbus.kafka.groups import Groups
from logbus.kafka.producing import produce
from logbus.kafka.topic_list import TopicBatches
from logbus.kafka.topics import Topics
from logbus.kafka.users import read_rights
from logbus.status.checks import Machine, Severity, check_broker
from logbus.status.fleet import read_lags
from logbus.waiting import wait_until
from sqlalchemy import create_engine

from tests.support.pages import PROJECT, blocks
from tests.support.secured_kafka import PASSWORDS, SecuredKafka, token_endpoint, unsecured_token

TOPIC = "read.orders"


@pytest.fixture(scope="module")
def kafka(secured_kafka: SecuredKafka) -> SecuredKafka:
    admin = secured_kafka.admin()
    for future in admin.create_topics([NewTopic(TOPIC, 1)]).values():
        future.result()
    return secured_kafka


@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL", "SSL"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_user_who_may_read_a_topic_sees_it(kafka: SecuredKafka, listener: str, mechanism: str) -> None:
    assert TOPIC in Client(kafka.settings(listener, "reader", mechanism)).metadata().topics


def read_a_record(client: Client, topic: str) -> None:
    """And what else a load asks."""
    log = Topics(client)
    assert log.end_offsets(topic, log.topic(topic).partitions, "read_committed") == {0: 1}
    assert len(list(read_range(client.config, topic, 0, 0, 1))) == 1


def change_its_limit(client: Client, topic: str) -> None:
    Topics(client).delete_before(topic, {0: 1})
    Topics(client).change_settings(topic, {"retention.ms": "1000000000"})


def free_space(client: Client, topic: str) -> None:
    if not cluster.log_directories(client):
        raise AccessDenied("log directories are hidden: this user lacks Describe on the cluster")


# What each line of the page is for; without it, the error names an operation of the line.
PURPOSES: tuple[Callable[[Client, str], object], ...] = (
    read_a_record,
    lambda client, topic: Topics(client).settings(topic, ["retention.ms"]),
    change_its_limit,
    lambda client, topic: produce(client.config, topic, ["one"]),
    lambda client, topic: Groups(client).commit("logbus-a", {(topic, 0): 0}),
    free_space,
)


def test_each_line_of_the_page_grants_what_it_says(kafka: SecuredKafka) -> None:
    page = PROJECT / "docs" / "your-kafka.md"
    (lines,) = [block.text.splitlines() for block in blocks(page) if block.mark == "acls"]
    admin, topic = kafka.admin(), "web.orders"
    for future in admin.create_topics([NewTopic(topic, 1)]).values():
        future.result()
    produce(kafka.settings("SASL_SSL", "admin"), topic, ["one"])
    client = Client(kafka.settings("SASL_SSL", "nobody"))
    for purpose, line in zip(PURPOSES, lines, strict=True):
        with pytest.raises(LogbusError, match="this user lacks|is not authorized") as refused:
            purpose(client, topic)
        assert any(f"lacks {name} " in str(refused.value) for name in ("Describe", *re.findall(r"--operation (\w+)", line)))
        assert "User:nobody" in str(refused.value) or "--cluster" in line
        kafka.grant_as_written(line.replace("User:reader", "User:nobody"))
        done = partial(is_done, purpose, client, topic)
        wait_until(done, what=f"the broker to know {line}", not_yet=(AccessDenied, ProduceFailed), timeout_seconds=60)


def is_done(purpose: Callable[[Client, str], object], client: Client, topic: str) -> bool:
    purpose(client, topic)
    return True


def test_a_user_who_may_only_read_sees_the_lag_and_what_is_unknown(
    kafka: SecuredKafka,
    warehouse_url: str,
    tmp_path: Path,
) -> None:
    topic, config = "read.lag", tmp_path / "client.json"
    admin = kafka.admin()
    for future in admin.create_topics([NewTopic(topic, 1)]).values():
        future.result()
    at = datetime.now(UTC) - timedelta(hours=3)
    produce(kafka.settings("SASL_SSL", "admin"), topic, [{"value": "{}", "timestamp": at}])
    config.write_text(json.dumps(kafka.settings("SASL_SSL", "reader")))

    def run(*words: str) -> Result:
        environment = {"LOGBUS_CLIENT_CONFIG": str(config), "LOGBUS_WAREHOUSE_URL": warehouse_url, "COLUMNS": "200"}
        result = CliRunner(env=environment).invoke(main, words, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result

    run("pipeline", "register", "orders", "--topic", topic, "--table", "orders", "--parse", "raw")
    (found,) = json.loads(run("lag", "-o", "json").stdout)
    assert (found["hours_behind"], found["records_behind"], found["problem"]) == (1, 1, None)
    assert "--allow-principal User:reader --operation DescribeConfigs" in found["expiry_problem"]
    assert "when retention deletes its records is unknown: this user lacks DescribeConfigs" in run("lag").stderr
    (page,) = [
        reading.lag
        for reading in read_lags(
            create_engine(warehouse_url), TopicBatches(Client(kafka.settings("SASL_SSL", "reader"))), datetime.now(UTC)
        ).pipelines
    ]
    assert (page.records, page.expiry_problem) == (
        1,
        found["expiry_problem"].replace(f"the broker at {kafka.address('SASL_SSL')}", "the broker"),
    )
    assert run("consume", topic).stdout == "{}\n"  # although it may not look for a group's coordinator
    told = json.loads(run("doctor", "--only", "pipelines", "--only", "disk", "-o", "json").stdout)
    notes = {finding["message"]: finding["advice"] for finding in told if finding["severity"] == "note"}
    assert [advice for advice in notes.values() if "User:reader --operation DescribeConfigs --topic read.lag" in advice]
    assert [advice for advice in notes.values() if "User:reader --operation Describe --cluster" in advice]


def test_a_user_is_told_what_it_may_do_on_the_cluster_topics_and_groups(kafka: SecuredKafka) -> None:
    client = Client(kafka.settings("SASL_SSL", "reader"))
    rights = {(resource.kind.value, resource.name): resource for resource in read_rights(client, ["hidden.topic"]).resources}
    orders, hidden, whole = rights["topic", TOPIC], rights["topic", "hidden.topic"], rights["cluster", ""]
    assert [name for name, may in orders.summary()["operations"].items() if may] == ["Describe", "Read"]
    assert "--allow-principal User:reader --operation AlterConfigs --topic read.orders" in orders.lacking()["AlterConfigs"]
    assert (hidden.may("Read"), isinstance(hidden.error, AccessDenied)) == (None, True)
    assert (whole.may("Create"), whole.lacking()["Describe"].endswith("--operation Describe --cluster")) == (False, True)
    everything = read_rights(Client(kafka.settings("SASL_SSL", "admin"))).resources
    assert all(resource.lacking() == {} for resource in everything)


def test_certificates_in_the_settings_themselves_connect_both_libraries(kafka: SecuredKafka) -> None:
    settings = kafka.settings("SSL", "reader")
    inline = {name.replace("location", "pem"): Path(value).read_text() for name, value in settings.items() if "location" in name}
    client = Client({name: value for name, value in settings.items() if "location" not in name} | inline)
    assert TOPIC in client.metadata().topics
    assert "Fetch" in cluster.api_versions(client)


BY_TOKEN = {"sasl_mechanism": "OAUTHBEARER", "sasl_username": None, "sasl_password": None}
FUNCTION = {"oauth_cb": f"{unsecured_token.__module__}.{unsecured_token.__name__}", "sasl_oauthbearer_config": "reader"}
BUILT_IN = {"enable_sasl_oauthbearer_unsecure_jwt": "true", "sasl_oauthbearer_config": "principal=reader"}


@pytest.mark.parametrize("maker", [FUNCTION, BUILT_IN])
def test_a_token_logs_in(kafka: SecuredKafka, maker: dict[str, str | None]) -> None:
    config = other(kafka.settings("SASL_SSL", "reader"), **BY_TOKEN, **maker)
    assert TOPIC in Client(config).metadata().topics
    produce(kafka.settings("SASL_SSL", "admin"), TOPIC, ["one"])
    assert next(iter(read_range(json.loads(json.dumps(config)), TOPIC, 0, 0, 1))).value() == b"one"


def test_a_token_of_an_issuer_logs_in(kafka: SecuredKafka) -> None:
    with token_endpoint() as issued:
        config = other(kafka.settings("SASL_SSL", "reader"), **BY_TOKEN) | issued
        assert TOPIC in Client(config).metadata().topics
        (found,) = check_broker(Machine(clock=lambda: datetime.now(UTC), client_config=config))
    assert (found.severity, "no counterpart" in found.message) == (Severity.NOTE, True)
    refused = Client.for_command(config)
    with pytest.raises(UserError, match="sasl.oauthbearer.token.endpoint.url"):
        refused.ask(refused.ask_cluster)


@pytest.mark.parametrize(
    ("changed", "severity", "sentence"),
    [
        ({}, Severity.OK, "supports all"),
        (BY_TOKEN | FUNCTION, Severity.OK, "supports all"),
        (BY_TOKEN | BUILT_IN, Severity.NOTE, "unknown: this setting has no counterpart .*unsecure.jwt"),
        ({"sasl_password": "x"}, Severity.ERROR, "authentication with .* failed"),
    ],
)
def test_the_doctor_tells_a_setting_from_a_broker_that_is_away(
    kafka: SecuredKafka, changed: dict[str, str | None], severity: Severity, sentence: str
) -> None:
    config = other(kafka.settings("SASL_SSL", "reader"), **changed)
    (found,) = check_broker(Machine(clock=lambda: datetime.now(UTC), client_config=config))
    assert (found.severity, "start it" in found.advice) == (severity, False)
    assert re.search(sentence, found.message)


def test_connect_asks_tries_and_writes_a_file_for_kafkas_tools_and_for_ours(kafka: SecuredKafka, tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    answers = [kafka.address("SASL_SSL"), "sasl_ssl", "", "reader", "wrong", str(kafka.authority.certificate)]

    def connect(*words: str) -> Result:
        return CliRunner().invoke(main, ["connect", "--write", str(path), *words], input="\n".join([*answers, ""]))

    refused = connect()
    assert (refused.exit_code, path.exists(), "sasl.password" in refused.stderr) == (1, False, True)
    answers[4] = PASSWORDS["reader"]
    done = connect("--show-password")
    assert (done.exit_code, path.stat().st_mode & 0o777) == (0, 0o600), done.output
    assert ["read.orders", "yes", "no", "no", "no"] in [line.split() for line in done.stdout.splitlines()]
    (airflow,) = [shlex.split(line) for line in done.stdout.splitlines() if line.startswith("airflow connections add")]
    assert json.loads(airflow[-1]) == read_client_config(path) == kafka.settings("SASL_SSL", "reader")
    assert "exists already" in connect().stderr
    kafka.tools.run(
        "org.apache.kafka.tools.TopicCommand",
        "--bootstrap-server",
        kafka.address("SASL_SSL"),
        "--list",
        "--command-config",
        str(path),
    )
    assert TOPIC in Client(read_client_config(path)).metadata().topics


def other(settings: dict[str, str], **changed: str | None) -> dict[str, str]:
    """The settings with some changed, by names with underscores; None takes one out."""
    replaced = settings | {name if name == "oauth_cb" else name.replace("_", "."): value for name, value in changed.items()}
    return {name: value for name, value in replaced.items() if value is not None}


@pytest.mark.parametrize(
    ("listener", "port", "changed", "sentence"),
    [
        ("PLAINTEXT", "SASL_SSL", {}, "speaks SASL_SSL, and security.protocol is PLAINTEXT: set it to SASL_SSL, and sasl.mechanism to one of .*SCRAM"),
        ("PLAINTEXT", "SASL_PLAINTEXT", {}, "speaks SASL_PLAINTEXT, and security.protocol is PLAINTEXT"),
        ("SSL", "SASL_SSL", {}, "speaks SASL_SSL, and security.protocol is SSL"),
        ("SASL_SSL", "SASL_PLAINTEXT", {}, "speaks SASL_PLAINTEXT, and security.protocol is SASL_SSL"),
        ("SASL_PLAINTEXT", "PLAINTEXT", {}, "speaks PLAINTEXT, and security.protocol is SASL_PLAINTEXT: set it to PLAINTEXT"),
        ("SASL_SSL", "SASL_SSL", {"ssl_ca_location": None}, "certificate could not be verified.*ssl.ca.location"),
        ("SASL_SSL", "SASL_SSL", {"sasl_password": "x"}, "authentication with .* failed: .*sasl.password"),
        ("SSL", "SSL", {"ssl_certificate_location": None, "ssl_key_location": None}, "wants a certificate of this client.*set ssl.certificate.location"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_named(
    kafka: SecuredKafka, listener: str, port: str, changed: dict[str, str | None], sentence: str
) -> None:
    client = Client.for_command(other(kafka.settings(listener, "reader"), bootstrap_servers=kafka.address(port), **changed))
    with pytest.raises(UserError, match=sentence):
        client.ask(client.ask_cluster)
