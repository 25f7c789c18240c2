"""Whatever a stranger sends to a listener that requires a login, TLS records included, nothing gets past the gate without the right
password, nobody else notices, and nothing is left behind. `make soak` plays many times as many, and others.
"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from logbus_broker.security import sasl

from tests.support.examples import examples
from tests.support.strangers import Gatehouse

CASES = examples(600)


def test_strangers_get_past_the_gate_with_the_right_password_only(
    tmp_path: Path, defects: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, logger="broker")  # pytest keeps lines, and with their errors the connections
    gatehouse = Gatehouse(tmp_path, 2026, defects)
    gatehouse.run(0, CASES)
    gatehouse.close()
    assert min(gatehouse.outcomes[what] for what in ("logged in", "closed", "to the end", "TLS failed")) > CASES // 100


@pytest.mark.parametrize("check", ["_is_proof", "is_password"])
def test_a_check_that_is_missing_is_noticed(
    check: str, tmp_path: Path, defects: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sasl, check, lambda *of: True)
    with pytest.raises(AssertionError, match="has no right password"):
        Gatehouse(tmp_path, 2026, defects).run(0, 400)
    defects.clear()
