from __future__ import annotations

from logbus.ui.pages import window_page, windows_page

from tests.support.airflow_context import HOUR_START
from tests.support.fake_ledger import window


def test_a_page_shows_ranges_counts_and_fingerprint() -> None:
    page = window_page(window(HOUR_START, attempt=2), "warehouse_default")
    for text in ("2015-05-17T10:00:00Z", f"{10:016x}", "start offset", ">5<", ">15<", "dead_lettered"):
        assert text in page


def test_a_window_that_is_not_loaded_has_a_page_too() -> None:
    assert "frozen" in window_page(window(HOUR_START), "w")


def test_whatever_a_name_holds_is_escaped() -> None:
    bad = '<script>alert("x")</script>'
    pages = [window_page(window(HOUR_START, pipeline=bad, topic=bad), bad), windows_page(bad, [window(HOUR_START)], bad)]
    assert not [page for page in pages if "<script>" in page]


def test_the_list_leads_to_each_window_and_keeps_the_connection() -> None:
    page = windows_page("a/b", [window(HOUR_START)], "w1")
    assert 'href="a%2Fb/2015-05-17T10%3A00%3A00Z?warehouse_conn_id=w1"' in page
