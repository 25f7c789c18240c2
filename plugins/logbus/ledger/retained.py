"""What the broker still holds of a window, and the errors for what it does not."""

from __future__ import annotations

from collections.abc import Mapping

from logbus.errors import RecordsLost, TopicRecreated, WindowError
from logbus.kafka.topics import OffsetLog, TopicFacts
from logbus.model import FrozenWindow

# Between a topic's id and the time its log was given up for another one: no broker uses such an id.
SET_ASIDE = " until "


def refuse_if_recreated(topic: str, expected_id: str, found_id: str) -> None:
    """Old offsets can be read from a recreated topic without any error: only the id differs."""
    if expected_id.startswith(f"{found_id}{SET_ASIDE}"):
        raise TopicRecreated(
            f"the log of topic {topic} on which this was frozen is no more since {expected_id.rpartition(SET_ASIDE)[2]}, when "
            "`logbus pipeline rebase` went on with another one: its offsets mean other records"
        )
    if expected_id != found_id:
        raise TopicRecreated(
            f"topic {topic} was deleted and made again (id {expected_id} is now {found_id}): its offsets mean other records. "
            "`logbus pipeline rebase` begins a new chain of windows on the new topic; what is loaded stays"
        )


def refuse_if_cut(window: FrozenWindow, log: OffsetLog) -> None:
    """A loaded window may have lost its records since; one that is not loaded is refused before a load tries to read them."""
    if window.loaded_attempt is not None:
        return
    refuse_if_recreated(window.topic, window.topic_id, log.topic(window.topic).topic_id)
    lost = lost_ranges(window, log.start_offsets(window.topic, [part.partition for part in window.ranges]))
    if lost:
        raise RecordsLost(
            f"retention has deleted {', '.join(lost)} of window {window.interval} before it was loaded. To load what is left and "
            'keep the loss on record, register the pipeline with the setting {"accept_loss": true}, and load the window again',
            lost=lost,
        )


def why_unreadable(window: FrozenWindow, facts: TopicFacts, start_offsets: Mapping[int, int]) -> WindowError | None:
    """Why the window's records can no longer be read; None if they can, or if all of them are given up."""
    if window.loss_accepted is not None and not window.record_count:
        return None
    try:
        refuse_if_recreated(window.topic, window.topic_id, facts.topic_id)
    except TopicRecreated as error:
        return error
    lost = lost_ranges(window, start_offsets)
    if not lost:
        return None
    return RecordsLost(f"retention has deleted {', '.join(lost)}; the window cannot be loaded again", lost=lost)


def lost_ranges(window: FrozenWindow, start_offsets: Mapping[int, int]) -> list[str]:
    """The parts of the window that the broker no longer holds, as `topic-partition [start, end)`."""
    return [
        f"{part.topic}-{part.partition} [{part.readable_from}, {min(start_offsets[part.partition], part.end_offset)})"
        for part in window.ranges
        if part.count and start_offsets[part.partition] > part.readable_from
    ]
