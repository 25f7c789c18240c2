"""A package whose own `__init__` runs only when something in it is asked for that is not there yet.

For crc32c and caio, of which the broker needs one extension module each and not what their `__init__` imports besides.
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
