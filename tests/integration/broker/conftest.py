from __future__ import annotations

from tests.support.broker import broker  # noqa: F401
from tests.support.topics import topic  # noqa: F401
