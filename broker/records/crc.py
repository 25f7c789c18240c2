"""CRC-32C as the processor computes it. The package's `__init__` also imports its command line and looks up its own version,
which takes longer than half of the broker's modules: only its compiled part is loaded."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from broker.light_package import import_lightly

import_lightly("crc32c")
crc32c: Callable[..., int] = importlib.import_module("crc32c._crc32c").crc32c
"""The checksum of data, going on from a checksum where one is given."""
