"""`python -m broker settings`: a configuration file to start from."""

from __future__ import annotations

from click.testing import CliRunner

from broker.cli import main
from broker.config import BrokerConfig
from broker.config_file import build_config, parse_properties


def test_the_listed_settings_are_a_file_that_changes_nothing() -> None:
    listed = CliRunner().invoke(main, ["settings"])
    assert listed.exit_code == 0, listed.output
    assert build_config(parse_properties(listed.output, source="settings")) == BrokerConfig()
