from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from logbus.errors import UserError
from logbus.model import FrozenWindow, OffsetRange
from logbus.status.retention_plan import Hold, RetentionPolicy, TopicPlan, TopicState, hours_text, plan_topic, window_name
from logbus.windows.pipeline_chains import Anchor, PipelineChain

from tests.support.retention import at, chain, hourly, policy, state

# With 24 hours kept, the windows of hours 0 to 9 may be deleted.
NOW = at(34)
LOADED = [hourly(number) for number in range(20)]


def loaded_but(*hours: int) -> list[FrozenWindow]:
    """All of them but these, which are frozen."""
    return [hourly(number, loaded=number not in hours) for number in range(20)]


def planned(
    *chains: PipelineChain, limit: RetentionPolicy | None = None, log: TopicState | None = None, holds: tuple[Hold, ...] = ()
) -> TopicPlan:
    return plan_topic(limit or policy(), log or state(), chains, holds, NOW)


def ends(plan: TopicPlan) -> dict[int, int]:
    """The offset up to which each partition is deleted."""
    return {one.partition: one.end_offset for one in plan.deletions}


def test_what_is_older_than_the_limit_and_loaded_goes() -> None:
    plan = planned(chain(LOADED))
    assert ends(plan) == {0: 100}
    assert (plan.records, plan.bytes) == (100, 1000)
    assert not plan.alarms
    assert not plan.holds


def test_the_windows_that_stop_being_replayable_are_named() -> None:
    plan = planned(chain(LOADED), log=state(start=75))
    assert [window.interval.start for window in plan.unreplayable] == [at(8), at(9)]
    assert [window.interval.start for window in plan.cut] == [at(7), at(8), at(9)]
    assert window_name(plan.unreplayable[0]) == "p@2026-11-01T08:00:00Z"


def test_a_window_that_is_not_loaded_holds_back_and_says_for_how_long() -> None:
    plan = planned(chain(loaded_but(6)))
    assert ends(plan) == {0: 60}
    (held,) = plan.holds
    assert (held.offset, held.records, held.overdue) == (60, 40, timedelta(hours=3))
    assert "for 3 hours by pipeline p: window [2026-11-01T06:00:00Z, 2026-11-01T07:00:00Z) is not loaded" in str(held)
    assert not plan.alarms


@pytest.mark.parametrize(
    ("window", "why"),
    [
        (hourly(6, audited=False), "loaded, but not audited"),
        (hourly(6, loaded=False), "is not loaded"),
    ],
)
def test_only_what_is_loaded_and_audited_goes(window: object, why: str) -> None:
    plan = planned(chain([*LOADED[:6], window, *LOADED[7:]]))  # type: ignore[list-item]
    assert ends(plan) == {0: 60}
    assert why in plan.holds[0].why


def test_a_window_whose_head_is_unknown_can_never_be_audited_and_goes_when_it_is_loaded() -> None:
    assert ends(planned(chain([*LOADED[:6], hourly(6, audited=False, head_unknown=True), *LOADED[7:]]))) == {0: 100}


def test_a_window_that_is_being_loaded_again_is_kept() -> None:
    plan = planned(chain(LOADED, running=frozenset({3})))
    assert ends(plan) == {0: 30}
    assert "is being loaded" in plan.holds[0].why


def test_hours_that_nobody_froze_hold_back_what_lies_in_them() -> None:
    plan = planned(chain([*LOADED[:4], *LOADED[6:]]))
    assert ends(plan) == {0: 40}
    assert plan.holds[0].overdue == timedelta(hours=5)
    assert "hours before 2026-11-01T06:00:00Z are not frozen" in plan.holds[0].why


def test_a_pipeline_that_stands_still_holds_back_what_it_has_not_even_frozen() -> None:
    plan = planned(chain(LOADED[:4]), log=state(young=100), limit=policy(max_hold=timedelta(hours=4)))
    assert ends(plan) == {0: 40}
    assert (plan.holds[0].records, plan.holds[0].overdue) == (60, timedelta(hours=5))
    (alarm,) = plan.alarms
    assert "pipeline p has held back 60 records for 5 hours, 4 hours are allowed" in alarm
    assert "`logbus load --pipeline p`" in alarm


def test_empty_hours_hold_nothing_back() -> None:
    empty = replace(hourly(6, loaded=False), ranges=(OffsetRange(topic="t", partition=0, start_offset=60, end_offset=60),))
    moved = [replace(hourly(7), ranges=(OffsetRange(topic="t", partition=0, start_offset=60, end_offset=80),)), *LOADED[8:]]
    assert ends(planned(chain([*LOADED[:6], empty, *moved]))) == {0: 100}


def test_the_slowest_pipeline_decides() -> None:
    slow = chain(LOADED[:2], pipeline="slow")
    plan = planned(chain(LOADED), slow)
    assert ends(plan) == {0: 20}
    assert [held.pipeline for held in plan.holds] == ["slow"]


def test_partitions_are_held_back_one_by_one() -> None:
    """Hour 5 is not loaded and holds records in partition 1 only."""
    hour_5 = hourly(5, partitions=2, loaded=False)
    stuck = replace(hour_5, ranges=(replace(hour_5.ranges[0], end_offset=50), hour_5.ranges[1]))
    hour_6 = hourly(6, partitions=2)
    behind = replace(hour_6, ranges=(replace(hour_6.ranges[0], start_offset=50), hour_6.ranges[1]))
    windows = [hourly(number, partitions=2) for number in range(20)]
    plan = planned(chain([*windows[:5], stuck, behind, *windows[7:]]), log=state(partitions=2))
    assert ends(plan) == {0: 100, 1: 50}


def test_a_partition_that_came_later_is_kept_until_its_own_windows_are_loaded() -> None:
    windows = [hourly(number, partitions=2 if number >= 8 else 1) for number in range(20)]
    late = [
        replace(
            one,
            ranges=tuple(
                replace(part, start_offset=part.start_offset - 80, end_offset=part.end_offset - 80) if part.partition else part
                for part in one.ranges
            ),
        )
        for one in windows
    ]
    anchors = {0: Anchor(offset=0, at=None), 1: Anchor(offset=0, at=at(8))}
    assert ends(planned(chain(late, anchors=anchors), log=state(partitions=2))) == {0: 100, 1: 20}


def test_what_lies_before_a_pipelines_start_goes_when_the_start_is_older_than_the_limit() -> None:
    young = chain([], anchors={0: Anchor(offset=40, at=at(11))})
    old = chain([], anchors={0: Anchor(offset=40, at=at(10))})
    assert (ends(planned(young)), ends(planned(old))) == ({}, {0: 40})


def test_a_limit_by_size_keeps_at_least_so_many_bytes_of_the_newest_windows() -> None:
    sized = policy(hours=None, retain_bytes=250)
    assert ends(planned(chain(LOADED), limit=sized)) == {0: 170}
    assert ends(planned(chain(LOADED), limit=policy(hours=24, retain_bytes=250))) == {0: 170}
    assert ends(planned(chain(LOADED), limit=policy(hours=None, retain_bytes=10_000))) == {}


def test_windows_that_are_not_loaded_count_no_bytes_so_more_is_kept() -> None:
    windows = [hourly(number, loaded=number < 18) for number in range(20)]
    assert ends(planned(chain(windows), limit=policy(hours=None, retain_bytes=250))) == {0: 150}


def test_limits_that_the_broker_applies_by_itself_are_named() -> None:
    plan = planned(chain(LOADED), log=state(settings={"retention.ms": "604800000", "retention.bytes": "-1"}))
    assert plan.notes == ("its own retention.ms=604800000 deletes too, loaded or not: `logbus retention adopt t` takes it over",)
    assert ends(plan) == {0: 100}


HOLD = Hold(id=7, topic="t", reason="the auditors look at October", made_at=at(1), until=at(99))


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (planned(chain(LOADED), holds=(HOLD,)), "hold 7 until 2026-11-05T03:00:00Z: the auditors look at October"),
        (planned(), "leave it to the broker"),
        (planned(chain(LOADED), log=state(settings={"cleanup.policy": "compact"})), "cleanup.policy is compact"),
        (planned(chain(LOADED), chain([], pipeline="q", is_other_topic=True)), "`logbus pipeline rebase q`"),
    ],
    ids=["a hold", "no pipeline", "compacted", "recreated"],
)
def test_nothing_of_a_topic_is_deleted_and_it_says_why(plan: TopicPlan, why: str) -> None:
    assert plan.deletions == ()
    assert why in (*plan.notes, *plan.alarms)[0]


def test_only_when_told_so_it_gives_up_what_held_back_for_too_long() -> None:
    plan = planned(chain(loaded_but(6, 8)), limit=policy(max_hold=timedelta(hours=2), when_overdue="delete"))
    assert ends(plan) == {0: 80}
    assert [window.interval.start for window in plan.given_up] == [at(6)]
    assert not plan.alarms


def test_a_window_that_somebody_works_on_is_never_given_up() -> None:
    limit = policy(max_hold=timedelta(hours=2), when_overdue="delete")
    plan = planned(chain(loaded_but(6), running=frozenset({6})), limit=limit)
    assert ends(plan) == {0: 60}
    assert plan.alarms


def test_what_somebody_else_deleted_before_it_was_loaded_is_an_alarm_and_holds_nothing_back() -> None:
    plan = planned(chain(loaded_but(3)), log=state(start=45))
    assert ends(plan) == {0: 100}
    assert "partition 0 lost 10 records that pipeline p had not loaded" in plan.alarms[0]


def test_hours_gone_before_they_were_frozen_are_an_alarm() -> None:
    plan = planned(chain([*LOADED[:4], *LOADED[6:]]), log=state(start=70))
    assert "partition 0 lost 20 records" in plan.alarms[0]
    assert ends(plan) == {0: 100}


def test_a_plan_can_be_written_as_json() -> None:
    summary = planned(chain(loaded_but(6))).summary()
    assert summary["deletions"] == [
        {"partition": 0, "from": 0, "to": 60, "records": 60, "why": "beyond the 24 hours that are kept, and loaded"}
    ]
    assert summary["held"][0]["overdue_seconds"] == 10_800
    assert len(summary["no_longer_replayable"]) == 6


@pytest.mark.parametrize(
    "wrong",
    [{"hours": None}, {"hours": -1}, {"retain_bytes": -1}, {"max_hold": timedelta(hours=-1)}, {"when_overdue": "perhaps"}],
)
def test_a_policy_that_means_nothing_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError, match="retention of t"):
        policy(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(("hours", "text"), [(1, "1 hour"), (168, "168 hours"), (1.5, "1.5 hours"), (0, "0 hours")])
def test_spans_are_told_in_hours(hours: float, text: str) -> None:
    assert hours_text(timedelta(hours=hours)) == text
