"""Links as written in the repository become links of the site."""

from __future__ import annotations

import pytest

from scripts.site.markdown import targets, within_site

FILES = {"README.md", "docs/sinks.md", "docs/how-to/lag.md", "dags/examples/backfill.py", "docs/figures/paper.svg"}
FOLDERS = {"broker", "docs/decisions", "dags"}


def rewritten(text: str, home: str = "docs", page: str = "faults.md") -> str:
    return within_site(text, home, page, FILES.__contains__, (FILES | FOLDERS).__contains__)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see [sinks](sinks.md)", "see [sinks](sinks.md)"),
        ("[part](sinks.md#two-commits)", "[part](sinks.md#two-commits)"),
        ("[start](../README.md)", "[start](index.md)"),
        ("[example](../dags/examples/backfill.py)", "[example](source/dags/examples/backfill.py.md)"),
        ("![plot](figures/paper.svg)", "![plot](figures/paper.svg)"),
        ("[rooms](../broker/)", "rooms"),
        ("[why](decisions/)", "[why](decisions/README.md)"),
    ],
)
def test_a_link_leads_to_where_the_site_has_it(text: str, expected: str) -> None:
    assert rewritten(text) == expected


def test_a_link_from_a_page_below_goes_up_first_and_one_of_the_front_page_starts_at_the_root_of_the_repository() -> None:
    assert rewritten("[a](../sinks.md)", "docs/how-to", "how-to/lag.md") == "[a](../sinks.md)"
    assert rewritten("[a](../../README.md)", "docs/how-to", "how-to/lag.md") == "[a](../index.md)"
    assert rewritten("[a](docs/sinks.md), [b](broker/)", "", "index.md") == "[a](sinks.md), b"


@pytest.mark.parametrize("text", ["[a](https://example.org/x)", "[a](#part)", "[a](nowhere.md)", "[a](/absolute)"])
def test_what_leads_elsewhere_or_nowhere_stays_as_it_is_written(text: str) -> None:
    assert rewritten(text) == text


def test_targets_are_named_as_the_repository_names_them() -> None:
    text = "[a](../dags/examples/backfill.py) and [b](sinks.md#x)"
    assert list(targets(text, "docs")) == ["dags/examples/backfill.py", "docs/sinks.md"]
