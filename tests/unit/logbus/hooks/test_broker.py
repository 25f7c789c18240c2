from __future__ import annotations

import json

import pytest
from airflow.sdk import DAG
from logbus.errors import UserError
from logbus.hooks import warehouse as warehouse_module
from logbus.hooks.broker import BrokerHook
from logbus.operators.audit import AuditTableOperator
from logbus.operators.freeze_window import FreezeWindowOperator
from logbus.operators.load_window import LoadWindowOperator
from logbus.operators.maintenance import RetentionOperator
from logbus.operators.topic import ProduceOperator
from logbus.pipelines import define_pipeline


def connection(monkeypatch: pytest.MonkeyPatch, extra: dict[str, object]) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": extra}))


def test_the_extra_is_the_client_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    connection(monkeypatch, {"bootstrap.servers": "127.0.0.1:9", "security.protocol": "PLAINTEXT"})
    assert BrokerHook().client_config() == {"bootstrap.servers": "127.0.0.1:9", "security.protocol": "PLAINTEXT"}
    hook = BrokerHook()
    for asking in (hook.log_offsets(), hook.group_offsets()):
        assert asking.client is hook.client()
    assert hook.client().config["bootstrap.servers"] == "127.0.0.1:9"


def test_a_connection_without_servers_says_where_to_put_them(monkeypatch: pytest.MonkeyPatch) -> None:
    connection(monkeypatch, {"group.id": "g"})
    with pytest.raises(UserError, match=r"bootstrap\.servers"):
        BrokerHook().client_config()


def test_a_function_for_tokens_has_to_be_in_the_kafka_providers_list_and_stays_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"bootstrap.servers": "h:1", "oauth_cb": "some.module.function", "stats_cb": "some.module.other"}
    connection(monkeypatch, extra)
    with pytest.raises(UserError, match="some.module.function.*callback_allowlist"):
        BrokerHook().client_config()
    monkeypatch.setenv("AIRFLOW__APACHE_KAFKA__CALLBACK_ALLOWLIST", "a.b, some.module.function")
    assert BrokerHook().client_config() == {"bootstrap.servers": "h:1", "oauth_cb": "some.module.function"}


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [
        *((name, True) for name in ("sasl.password", "ssl.key.password", "ssl.keystore.password", "ssl.key.pem")),
        *((f"sasl.oauthbearer.{name}", True) for name in ("config", "extensions", "client.secret")),
        *((f"sasl.oauthbearer.assertion.private.key.{name}", True) for name in ("passphrase", "pem")),
        *((name, False) for name in ("sasl.username", "ssl.ca.pem", "sasl.oauthbearer.token.endpoint.url", "ssl.key.location")),
    ],
)
def test_secrets_are_masked_by_value_in_every_spelling(name: str, is_secret: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    connection(monkeypatch, {"bootstrap.servers": "h:1", name: 'p+"a s/s'})
    masked: list[object] = []
    monkeypatch.setattr(warehouse_module, "mask_secret", masked.append)
    BrokerHook().client_config()
    spelled = ['p+"a s/s', 'p+\\"a s/s', "p%2B%22a%20s%2Fs", "p+%22a%20s%2Fs", "p+%22a s%2Fs", "p%2B%22a+s%2Fs"]
    assert masked == (spelled if is_secret else [])


def test_the_connections_own_fields_are_what_its_extra_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"conn_type": "kafka", "host": "h", "port": 9093, "login": "ann", "password": "sesame"}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({**fields, "extra": {"security.protocol": "SASL_SSL"}}))
    login = {"sasl.username": "ann", "sasl.password": "sesame"}
    assert BrokerHook().client_config() == {"bootstrap.servers": "h:9093", **login, "security.protocol": "SASL_SSL"}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({**fields, "extra": {"bootstrap.servers": "other:1"}}))
    assert BrokerHook().client_config() == {"bootstrap.servers": "other:1", **login}


def test_the_kafka_providers_name_of_the_connection_is_taken_as_well() -> None:
    pipeline = define_pipeline("p", topic="t", table="p", parse="lines")
    with DAG("d", schedule=None, default_args={"kafka_config_id": "theirs"}):
        tasks = [
            ProduceOperator(task_id="produce", topic="t", records=["one"]),
            RetentionOperator(task_id="retention"),
            AuditTableOperator(task_id="audit_table", table="t", topic="t"),
            FreezeWindowOperator(task_id="freeze", pipeline=pipeline),
            LoadWindowOperator(task_id="load", pipeline=pipeline),
        ]
    assert {BrokerHook(kafka_config_id="theirs").kafka_conn_id, *(task.kafka_conn_id for task in tasks)} == {"theirs"}
