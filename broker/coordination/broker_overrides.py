"""Broker settings changed at run time: for every broker of the cluster, and for this one. A single broker keeps them in one small
JSON file.

This broker's own scope takes precedence, as in Kafka. Values are checked before they are stored, and apply once they are on disk.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from enum import Enum

from broker.coordination.image import Image
from broker.coordination.local import Files, reading
from broker.coordination.znodes import EVERY_BROKER

_FILE = "broker-configs.json"

Rewrite = Callable[[Mapping[str, str]], Mapping[str, str]]  # from the current settings to the wanted ones


class Scope(Enum):
    """Which brokers a setting applies to; the value is the key in the file."""

    THIS_BROKER = "broker"
    EVERY_BROKER = "default"


class Overrides(ABC):
    """The changed settings of both scopes, under the broker's names, wherever they are kept."""

    @abstractmethod
    def of(self, scope: Scope) -> Mapping[str, str]:
        """What a scope sets."""

    def with_change(self, scope: Scope, values: Mapping[str, str]) -> dict[str, str]:
        """The effective settings if `values` were the scope's."""
        changed = {each: values if each is scope else self.of(each) for each in Scope}
        return {**changed[Scope.EVERY_BROKER], **changed[Scope.THIS_BROKER]}

    def merged(self) -> dict[str, str]:
        """The effective settings of both scopes."""
        return self.with_change(Scope.THIS_BROKER, self.of(Scope.THIS_BROKER))


class BrokerOverrides(Overrides):
    """Those of a single broker, in its file."""

    def __init__(self, files: Files) -> None:
        self._files = files
        stored = files.read_json(_FILE)
        with reading(_FILE):
            self._values: dict[Scope, Mapping[str, str]] = {
                scope: {} if stored is None else dict(stored.get(scope.value, {})) for scope in Scope
            }
            if not all(isinstance(value, str) for values in self._values.values() for value in values.values()):
                raise TypeError("a value is no text")

    def of(self, scope: Scope) -> Mapping[str, str]:
        return self._values[scope]

    def write_job(self, scope: Scope, values: Mapping[str, str]) -> Callable[[], None]:
        """A job for any thread that stores `values` as the scope's."""
        changed = {**self._values, scope: values}
        stored = {scope.value: dict(rows) for scope, rows in changed.items()}
        return lambda: self._files.write_json_atomic(_FILE, stored)

    def replace(self, scope: Scope, values: Mapping[str, str]) -> None:
        """They apply from now on."""
        self._values = {**self._values, scope: dict(values)}


class ImageOverrides(Overrides):
    """Those of a cluster, from the image as it is at each call."""

    def __init__(self, image: Callable[[], Image], broker_id: int) -> None:
        self._image = image
        self._names = {Scope.EVERY_BROKER: EVERY_BROKER, Scope.THIS_BROKER: str(broker_id)}

    def name(self, scope: Scope) -> str:
        """The scope's node name below /config/brokers."""
        return self._names[scope]

    def of(self, scope: Scope) -> Mapping[str, str]:
        settings = self._image().broker_settings.get(self._names[scope])
        return {} if settings is None else settings.values
