from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from logbus.errors import UserError
from logbus_spark.load_windows import kafka_settings, main

SETTINGS = {"bootstrap.servers": "b:9093", "sasl.username": "me"}


def test_the_brokers_settings_come_as_json_or_in_a_file_and_the_jvms_names_are_understood(tmp_path: Path) -> None:
    login = {"sasl.jaas.config": 'org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password="p";'}
    (tmp_path / "client.properties").write_text("bootstrap.servers=b:9093\nsasl.username=me\n")
    cases: list[tuple[dict[str, str], dict[str, Any]]] = [
        ({"LOGBUS_KAFKA_CONFIG": json.dumps(SETTINGS)}, SETTINGS),
        ({"LOGBUS_KAFKA_CONFIG": json.dumps(login)}, {"sasl.username": "me", "sasl.password": "p"}),
        ({"LOGBUS_CLIENT_CONFIG": str(tmp_path / "client.properties")}, SETTINGS),
    ]
    for environ, settings in cases:
        assert kafka_settings(environ) == settings
    with pytest.raises(UserError, match="neither LOGBUS_KAFKA_CONFIG .* nor LOGBUS_CLIENT_CONFIG"):
        kafka_settings({})


def test_a_driver_without_its_secrets_says_which_variable_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--pipeline", "p", "--window", "2015-05-17T10:00:00Z=1"]
    assert main(arguments, {"LOGBUS_KAFKA_CONFIG": json.dumps(SETTINGS)}) == 1
    assert "error: the driver's environment has no LOGBUS_WAREHOUSE_URL" in capsys.readouterr().err
