"""The page on the user interface uses the heat map's own words."""

from __future__ import annotations

import json
import re

from tests.support.pages import PROJECT

STATES = (PROJECT / "plugins/logbus/web/static/states.js").read_text()
PAGE = (PROJECT / "docs/ui.md").read_text()
STATE = re.compile(r'^  \{ name: "\w+", label: ("[^"]*"), letter: ("[^"]*"), meaning: ("[^"]*")', re.MULTILINE)
ROW = re.compile(r"^\| (?P<letter>\S*) ?\| (?P<label>[A-Z][\w ]*) \| (?P<meaning>[^|]*) \|", re.MULTILINE)


def test_every_state_of_an_hour_is_explained_in_the_words_of_the_legend() -> None:
    shown = {tuple(json.loads(text) for text in found) for found in STATE.findall(STATES)}
    explained = {(found["label"], found["letter"], found["meaning"]) for found in ROW.finditer(PAGE)}
    assert len(shown) == 9
    assert explained == shown
