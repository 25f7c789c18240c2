"""The types of fixtures: `run` runs a command, in tests/integration/cli against the broker; `shown` returns its JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from click.testing import Result

Run = Callable[..., Result]
Shown = Callable[..., Any]
