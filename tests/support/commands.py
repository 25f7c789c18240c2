"""The types of the fixtures of tests/integration/cli: `run` runs a command against the broker, `shown` returns its JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from click.testing import Result

Run = Callable[..., Result]
Shown = Callable[..., Any]
