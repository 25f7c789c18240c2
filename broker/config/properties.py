"""From a properties file and `--override key=value` to a BrokerConfig; errors name the setting, and suggest similar names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from broker.config.fields import nearest, whole_number
from broker.config.rules import check_together
from broker.config.settings import BrokerConfig, LogConfig
from broker.errors import ConfigError


def settings() -> Iterable[Any]:
    """Every field with a name that a configuration file or --override may use."""
    yield from (item for item in fields(BrokerConfig) if item.metadata)
    yield from fields(LogConfig)


def parse_properties(text: str, *, source: str) -> dict[str, str]:
    """Read Java-properties style `key=value` lines; `#` and `!` begin comments."""
    values: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        name, separator, value = line.partition("=")
        if not separator:
            raise ConfigError(f"{source}, line {number}: expected key=value, found {line!r}")
        values[name.strip()] = value.strip()
    return values


def build_config(values: Mapping[str, str]) -> BrokerConfig:
    """Turn texts under Kafka's names into a BrokerConfig; ConfigError names the first that cannot be used."""
    values = _with_hours_and_minutes(values)
    known = {item.metadata["name"]: item for item in settings()}
    log_names = {item.name for item in fields(LogConfig)}
    own: dict[str, Any] = {}
    log: dict[str, Any] = {}
    for name, text in values.items():
        if name not in known:
            raise ConfigError(f"unknown setting {name!r}{nearest(name, known) or '; `python -m broker settings` lists them'}")
        item = known[name]
        try:
            value = item.metadata["parse"](text)
        except ValueError as error:
            raise ConfigError(f"{name}={text}: {error}") from None
        (log if item.name in log_names else own)[item.name] = value
    config = BrokerConfig(**own, log=LogConfig(**log))
    check_together(config)
    return config


def _with_hours_and_minutes(values: Mapping[str, str]) -> dict[str, str]:
    """Kafka's coarser spellings of the two settings that have them; the finer one wins, as in Kafka."""
    coarser = (
        ("log.retention.hours", "log.retention.ms", 3_600_000),
        ("log.retention.minutes", "log.retention.ms", 60_000),
        ("log.roll.hours", "log.roll.ms", 3_600_000),
    )
    result = dict(values)
    found: dict[str, str] = {}
    for name, finer, factor in coarser:
        if name in result:
            text = result.pop(name)
            try:
                value = whole_number(text)
            except ValueError as error:
                raise ConfigError(f"{name}={text}: {error}") from None
            found[finer] = str(value * factor if value >= 0 else -1)
    return {**found, **result}


def load_config(file: str | None, overrides: Iterable[str]) -> BrokerConfig:
    """A configuration file, if any, with `key=value` overrides applied."""
    values: dict[str, str] = {}
    if file is not None:
        try:
            values = parse_properties(Path(file).read_text(), source=file)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the configuration file {file}: {error}") from None
    for override in overrides:
        values.update(parse_properties(override, source=f"--override {override}"))
    return build_config(values)
