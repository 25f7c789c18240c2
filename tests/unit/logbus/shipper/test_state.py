from __future__ import annotations

import os
from pathlib import Path

import pytest
from logbus.errors import StateInUse, StateUnusable
from logbus.shipper.ship import ShippedTopic, open_state
from logbus.shipper.sources import Fingerprint, Source


def source(name: str) -> Source:
    where = {"path": f"/var/log/{name}", "device": 1, "inode": 2, "position": 10}
    return Source(source_id=name, head=Fingerprint.of(b"first line"), timestamp_ms=5, ahead=(12, 30), **where)  # type: ignore[arg-type]


def test_what_was_saved_is_read_back(tmp_path: Path) -> None:
    saved = ShippedTopic(topic="access", clean=False, next_offsets={0: 7, 1: 0}, sources={"a": source("a")})
    with open_state(tmp_path / "deep" / "state.json") as state:
        state.save("topic-id", saved)
    with open_state(tmp_path / "deep" / "state.json") as state:
        assert state.topic("topic-id", "access") == saved


def test_topics_share_a_file_and_a_recreated_one_has_another_id_and_an_empty_state(tmp_path: Path) -> None:
    with open_state(tmp_path / "state.json") as state:
        for name in ("one", "two"):
            state.save(name, ShippedTopic(topic=name, sources={name: source(name)}))
    with open_state(tmp_path / "state.json") as state:
        assert [list(state.topic(name, name).sources) for name in ("one", "two")] == [["one"], ["two"]]
        assert state.topic("new-id", "one") == ShippedTopic(topic="one")


def test_two_runs_cannot_use_one_state_file(tmp_path: Path) -> None:
    with (
        open_state(tmp_path / "state.json"),
        pytest.raises(StateInUse, match="wait for it. Only files that no other run"),
        open_state(tmp_path / "state.json"),
    ):
        pass


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 99, "topics": {}}', '{"topics": {}}'])
def test_a_state_file_that_cannot_be_used_is_never_overwritten(tmp_path: Path, text: str) -> None:
    path = tmp_path / "state.json"
    path.write_text(text)
    with pytest.raises(StateUnusable, match=r"state\.json.*every line is sent again"), open_state(path):
        pass
    assert path.read_text() == text


def test_a_place_that_cannot_hold_a_state_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateUnusable, match="--state"), open_state(tmp_path / "file" / "state.json"):
        pass


def test_a_crash_while_saving_leaves_the_old_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.json"
    with open_state(path) as state:
        state.save("id", ShippedTopic(topic="access", next_offsets={0: 1}))

        def full(descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(StateUnusable, match="No space left"):
            state.save("id", ShippedTopic(topic="access", next_offsets={0: 2}))
    with open_state(path) as state:
        assert state.topic("id", "access").next_offsets == {0: 1}
