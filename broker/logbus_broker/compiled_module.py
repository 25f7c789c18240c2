"""One compiled module of a package, without the package's own `__init__`.

For crc32c and caio: the broker needs one extension module of each, and none of what their `__init__` also imports (asyncio, and
the e-mail parser for their version). Measured: importing the broker takes 634 million instructions, with both packages whole 805.
"""

from __future__ import annotations

from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from types import ModuleType


def load_compiled(package: str, name: str) -> ModuleType:
    """The module `name` of `package`, without importing the package; ModuleNotFoundError if either is missing. Only for a module
    that imports nothing from its package."""
    whole = find_spec(package)
    spec = PathFinder.find_spec(f"{package}.{name}", whole.submodule_search_locations) if whole else None
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"no module named '{package}.{name}'", name=f"{package}.{name}")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
