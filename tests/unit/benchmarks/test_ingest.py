from __future__ import annotations

from benchmarks.ingest import Timed, large_figures


def timed(seconds: float, rss_mib: float = 900) -> Timed:
    return Timed(seconds=seconds, commit_seconds=[0.1], rss_mib=rss_mib)


def test_what_the_checksum_takes_is_a_row_of_its_own_beside_commit_and_audit() -> None:
    ours = [timed(16.0), timed(18.0), timed(17.0)]
    figures = large_figures(2_000_000, timed(4.0, 800), ours, ours, ours, [2.0, 2.2, 2.1], [1.2, 1.1, 1.3], [900.0])
    found = {figure.figure: figure for figure in figures}
    name = "2000 k events, one hour"
    assert found[f"{name}: checksum of the values, in each load and in each audit"].ours == 1.2
    assert found[f"{name}: audit"].ours == 2.1
    assert found[f"{name}: commit"].ours == 0.1
