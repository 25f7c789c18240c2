from tests.support.broker import broker  # noqa: F401
from tests.support.restoring import restorable  # noqa: F401
