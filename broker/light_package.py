"""A package whose own `__init__` runs only when something in it is asked for that is not there yet.

kafka-python's `__init__` imports its clients; the broker needs the message classes below it and nothing else. Measured: half of
the broker's start and 8 MiB. Whoever asks for `kafka.KafkaProducer` in the same process still gets it.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any


class _LightPackage(ModuleType):
    def __getattr__(self, name: str) -> Any:
        spec = self.__spec__
        if (name.startswith("__") and name.endswith("__")) or spec is None or spec.loader is None:
            raise AttributeError(name)
        self.__class__ = ModuleType  # type: ignore[assignment]  # an ordinary module from now on
        spec.loader.exec_module(self)
        return getattr(self, name)


def import_lightly(name: str) -> None:
    """Make package `name` known, so that its submodules can be imported, without running its `__init__`. Does nothing where it
    is imported already; ModuleNotFoundError where it is not installed."""
    if name in sys.modules:
        return
    spec = find_spec(name)
    if spec is None:
        raise ModuleNotFoundError(f"no module named {name!r}", name=name)
    package = module_from_spec(spec)
    package.__class__ = _LightPackage
    sys.modules[name] = package
