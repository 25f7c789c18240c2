"""Whatever is appended between freezes, in whatever order hours are frozen, no record is in two windows or between two."""

from __future__ import annotations

import itertools

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.ledgers import NOW, World, hour, stamps

FIRST_HOUR, HOURS = 10, 6
_names = itertools.count(1)

appends = st.tuples(
    st.just("append"), st.lists(st.floats(FIRST_HOUR, FIRST_HOUR + HOURS, exclude_max=True), min_size=1, max_size=8)
)
freezes = st.tuples(st.just("freeze"), st.integers(FIRST_HOUR, FIRST_HOUR + HOURS - 1))


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(appends | freezes, max_size=14), st.permutations(range(FIRST_HOUR, FIRST_HOUR + HOURS)))
def test_windows_form_one_unbroken_chain(world: World, steps: list[tuple[str, object]], last_order: list[int]) -> None:
    name = f"p{next(_names)}"
    world.log.create(name)
    world.register(name=name, topic=name, table=name)

    def freeze(number: int) -> tuple[int, int]:
        (part,) = world.ledger.freeze_or_get(name, hour(number), world.log, NOW).ranges
        return part.start_offset, part.end_offset

    frozen_early = {}
    for kind, value in steps:
        if kind == "append":
            world.log.append(name, *stamps(*value))  # type: ignore[misc]
        else:
            frozen_early[value] = freeze(value)  # type: ignore[arg-type]
    ranges = dict(sorted((number, freeze(number)) for number in last_order))
    for number, early in frozen_early.items():
        assert ranges[number] == early  # type: ignore[index]
    for (_, end), (start, _) in itertools.pairwise(ranges.values()):
        assert end == start
    assert all(start <= end for start, end in ranges.values())
    assert ranges[FIRST_HOUR][0] == 0, "nothing lies before the first hour"
