"""The settings of every log: the configuration file's, those changed at run time, and each topic's own on top of both.

Incremental changes are a pure function from the settings that a topic or broker has to those it would have; nothing is stored
before the result has been checked as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from enum import IntEnum

from broker.config.catalog import ConfigSource, Layer
from broker.config.settings import BrokerConfig, LogConfig
from broker.coordination.broker_overrides import Overrides, Scope
from broker.errors import InvalidConfig, InvalidRequest, StartupError

_FIXED = frozenset(item.metadata["name"] for item in fields(BrokerConfig) if item.metadata)


class Operation(IntEnum):
    """Kafka's numbers for what an incremental change does."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """A change of one setting; `operation` is the number from the wire."""

    name: str
    operation: int
    value: str | None = None


def apply_changes(
    current: Mapping[str, str], changes: Iterable[ConfigChange], *, lists: Collection[str], effective: Callable[[str], str | None]
) -> dict[str, str]:
    """What `current` becomes; `effective` returns the value of a list without an override, which APPEND and SUBTRACT change."""
    result = dict(current)
    changed: set[str] = set()
    for change in changes:
        if change.name in changed:
            raise InvalidRequest(f"{change.name} is changed twice in one request")
        changed.add(change.name)
        if change.operation == Operation.DELETE:
            result.pop(change.name, None)
        elif change.value is None:
            raise InvalidRequest(f"{change.name} has no value: delete the setting to go back to the one below it")
        elif change.operation == Operation.SET:
            result[change.name] = change.value
        elif change.operation in (Operation.APPEND, Operation.SUBTRACT):
            if change.name not in lists:
                raise InvalidConfig(f"{change.name} is not a list: set it instead of appending to it or subtracting from it")
            before = result[change.name] if change.name in result else effective(change.name)
            result[change.name] = _changed_list(before or "", change.value, add=change.operation == Operation.APPEND)
        else:
            raise InvalidRequest(f"{change.operation} is not an operation: use SET, DELETE, APPEND or SUBTRACT")
    return result


def _changed_list(before: str, items: str, *, add: bool) -> str:
    had = [part.strip() for part in before.split(",") if part.strip()]
    named = [part.strip() for part in items.split(",")]
    if add:
        return ",".join([*had, *(part for part in dict.fromkeys(named) if part not in had)])
    return ",".join(part for part in had if part not in named)


class LogSettings:
    """The current settings of each log; `current` are those below the topics' own."""

    def __init__(self, static: LogConfig, overrides: Overrides) -> None:
        self._static = static
        self._overrides = overrides
        try:
            self.current = static.with_broker_overrides(overrides.merged())
        except InvalidConfig as error:
            raise StartupError(f"broker-configs.json: {error}; take the entry out") from None

    def of_topic(self, overrides: Mapping[str, str]) -> LogConfig:
        """InvalidConfig names the setting that cannot be used."""
        return self.current.with_topic_overrides(overrides)

    def of_scope(self, scope: Scope) -> Mapping[str, str]:
        return self._overrides.of(scope)

    def layers(self) -> tuple[Layer, ...]:
        """The settings changed at run time, highest precedence first."""
        return (
            (ConfigSource.DYNAMIC_BROKER, self._overrides.of(Scope.THIS_BROKER)),
            (ConfigSource.DYNAMIC_DEFAULT_BROKER, self._overrides.of(Scope.EVERY_BROKER)),
        )

    def check(self, scope: Scope, values: Mapping[str, str]) -> LogConfig:
        """The settings below the topics' own if `values` were the scope's."""
        fixed = sorted(values.keys() & _FIXED)
        if fixed:
            raise InvalidConfig(
                f"{fixed[0]} cannot be changed while the broker runs: set it in its configuration file, then restart"
            )
        self._static.with_broker_overrides(values)  # even if the other scope overrides them here for now
        return self._static.with_broker_overrides(self._overrides.with_change(scope, values))

    def refresh(self) -> None:
        """The settings changed at run time have changed. InvalidConfig: the previous ones stay in use."""
        self.current = self._static.with_broker_overrides(self._overrides.merged())
