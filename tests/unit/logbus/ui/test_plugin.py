from __future__ import annotations

import sys

import logbus_plugin as module
import pytest


def test_whoever_asks_for_the_applications_has_the_pages_imported() -> None:
    (application,) = module.LogbusPlugin().fastapi_apps
    assert (application["url_prefix"], application["app"]) == ("/logbus", module.pages)
    assert set(module.NEEDED) <= set(sys.modules)


def test_pages_that_cannot_be_imported_take_nothing_else_with_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "NEEDED", ("logbus.no_such_module",))
    with caplog.at_level("ERROR", logger="logbus.ui"):
        assert len(module.LogbusPlugin().fastapi_apps) == 1
    assert "no_such_module" in caplog.text
