from __future__ import annotations

import itertools

import pytest

from tests.support.broker import broker  # noqa: F401

_numbers = itertools.count(1)


@pytest.fixture
def topic() -> str:
    """A topic name that no other test uses."""
    return f"topic-{next(_numbers)}"
