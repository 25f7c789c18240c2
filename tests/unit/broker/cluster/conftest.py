from __future__ import annotations

import pytest

from tests.sim.coordinated import Coordinated, World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def broker(world: World) -> Coordinated:
    return world.started(1)
