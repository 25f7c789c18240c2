"""What `logbus connect` makes of options and answers. tests/contract/test_secured_kafka.py connects with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from logbus.cli import main
from logbus.kafka.client_config import properties, read_client_config

SASL = ("--security-protocol", "sasl_ssl")


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        ((), 2, "--bootstrap-server is needed: nothing is asked with --no-input"),
        (("-b", "127.0.0.1:1", *SASL), 2, "--user is needed"),
        (("-b", "127.0.0.1:1", *SASL, "--user", "ann"), 2, "LOGBUS_KAFKA_PASSWORD is needed"),
        (("-b", "127.0.0.1:1", *SASL, "--mechanism", "oauthbearer"), 1, "no setting says where tokens come from"),
        (("-b", "127.0.0.1:1", "-X", "sasl.password=x"), 2, "does not belong on a command line"),
        (("-b", "127.0.0.1:1"), 4, "127.0.0.1:1 did not answer"),
    ],
)
def test_without_questions_what_is_missing_or_wrong_is_named(
    tmp_path: Path, words: tuple[str, ...], status: int, sentence: str
) -> None:
    result = CliRunner().invoke(main, ["connect", "--no-input", "--write", str(tmp_path / "c"), *words])
    assert (result.exit_code, sentence in " ".join(result.stderr.split())) == (status, True), result.stderr
    assert not (tmp_path / "c").exists()


def test_a_file_holds_what_was_written_whatever_it_consists_of(tmp_path: Path) -> None:
    settings = {
        "bootstrap.servers": "a:1,b:2",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "Jürgen",
        "sasl.password": " a\\\"b;='#\t",
        "ssl.ca.pem": "-----BEGIN\nabc\n",
        "ssl.key.location": "/a b/key.pem",
    }
    (tmp_path / "c").write_text(properties(settings))
    assert read_client_config(tmp_path / "c") == settings
