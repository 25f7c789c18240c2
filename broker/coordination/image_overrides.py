"""Broker settings that were changed while it ran, from the image: any broker wrote them, and all know them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from broker.coordination.broker_overrides import Overrides, Scope
from broker.coordination.image import Image
from broker.coordination.znodes import EVERY_BROKER


class ImageOverrides(Overrides):
    """As of whenever somebody asks."""

    def __init__(self, image: Callable[[], Image], broker_id: int) -> None:
        self._image = image
        self._names = {Scope.EVERY_BROKER: EVERY_BROKER, Scope.THIS_BROKER: str(broker_id)}

    def name(self, scope: Scope) -> str:
        """Below /config/brokers."""
        return self._names[scope]

    def of(self, scope: Scope) -> Mapping[str, str]:
        settings = self._image().broker_settings.get(self._names[scope])
        return {} if settings is None else settings.values
