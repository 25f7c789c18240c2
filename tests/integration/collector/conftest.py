from tests.support.broker import broker  # noqa: F401
