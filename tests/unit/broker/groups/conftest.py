from __future__ import annotations

import pytest

from tests.support.groups import GroupUnderTest


@pytest.fixture
def group() -> GroupUnderTest:
    return GroupUnderTest()
