"""The reference of the broker's settings: names, types, defaults and texts as DescribeConfigs returns them to admin tools."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from broker.config.catalog import ConfigType, DescribedSetting, describe_broker
from broker.config.settings import INT64_MAX, BrokerConfig, LogConfig
from scripts.site.tables import bytes_in_words, code, milliseconds_in_words, plain, table

INTRODUCTION = """# Broker settings

Made from the broker's own catalogue, which `kafka-configs --describe --all` shows too. Settings stand in a properties file
(`python -m broker serve --config FILE`) or on the command line (`--override KEY=VALUE`); `python -m broker settings` prints a
file to start from. Names are Kafka's; what begins with `logbus.` Kafka does not have. The reason of each limit stands beside it
in `broker/config/settings.py`.

"""
OF_LOGS = """
## Logs, and what a topic may override

These may be changed while the broker runs, for all topics (`--entity-type brokers`) or, under the
topic's own name for it, for one.

"""
OF_BROKER = "## The broker\n\nThese are read at the start.\n\n"
WORDS = {"bytes": bytes_in_words, "size": bytes_in_words, "ms": milliseconds_in_words}


def settings_page() -> str:
    settings = sorted(describe_broker(BrokerConfig(), ()), key=lambda setting: setting.name)
    broker = table(("setting", "type", "default", "meaning"), (row(setting) for setting in settings if setting.read_only))
    topics = {item.metadata["name"]: item.metadata["topic"] for item in fields(LogConfig)}
    logs = table(("setting", "of a topic", "type", "default", "meaning"), log_rows(settings, topics))
    return f"{INTRODUCTION}{OF_BROKER}{broker}\n{OF_LOGS}{logs}\n"


def log_rows(settings: list[DescribedSetting], topics: dict[str, str]) -> Iterator[list[str]]:
    for setting in settings:
        if not setting.read_only:
            name, *rest = row(setting)
            yield [name, code(topics[setting.name]), *rest]


def row(setting: DescribedSetting) -> list[str]:
    kind = ConfigType(setting.config_type).name.lower()
    return [code(setting.name), kind, default_text(setting), plain(setting.documentation or "")]


def default_text(setting: DescribedSetting) -> str:
    """The default, also in words if its name has a unit."""
    value = setting.value or ""
    if value == str(INT64_MAX):
        return "no limit"
    unit = next((words for name, words in WORDS.items() if name in setting.name.split(".")), None)
    words = unit(int(value)) if unit and value.isdigit() else None
    return f"{code(value)} ({words})" if words else code(value)
