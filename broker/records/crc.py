"""CRC-32C, computed in hardware. The package's `__init__` also imports its command line and looks up its own version, which takes
longer than half of the broker's modules: only its compiled part is loaded."""

from __future__ import annotations

from collections.abc import Callable

from broker.compiled_module import load_compiled

crc32c: Callable[..., int] = load_compiled("crc32c", "_crc32c").crc32c
"""The checksum of data, continuing from a previous checksum if one is given."""
