"""Any order of writes, moves of the safe offsets, waits and leader changes: every waiter gets one answer, the right one."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st
from logbus_broker.errors import BrokerError
from logbus_broker.log.high_watermark import ReplicatedHighWatermark

from tests.support.engine import Harness
from tests.support.examples import examples
from tests.support.replicas import ScriptedWatermarks, append

SHARES = st.tuples(st.floats(0, 1), st.floats(0, 1))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 3)),
        st.tuples(st.just("move"), SHARES),
        st.tuples(st.just("wait visible"), st.floats(0, 1)),
        st.tuples(st.just("wait replicated"), st.floats(0, 1)),
        st.tuples(st.just("flush"), st.none()),
        st.tuples(st.just("lose and lead again"), st.none()),
    ),
    max_size=40,
)


class History:
    """One partition, and the answers that every waiter got."""

    def __init__(self, directory: Path) -> None:
        self.broker = Harness(directory, watermarks=ScriptedWatermarks())
        self.broker.create("clicks")
        held = self.broker.engine.partitions.held("clicks", 0)
        high_watermark = self.broker.engine.context.high_watermark
        assert held is not None
        assert isinstance(high_watermark, ReplicatedHighWatermark)
        self.partition, self.high_watermark = held, high_watermark
        self.asked: list[list[str]] = []
        high_watermark.on_advanced = self._exposed
        self.epoch = 1
        self.broker.engine.partitions.lead(held, self.epoch)

    def _exposed(self, _: object, byte_count: int) -> None:
        assert byte_count > 0, "or nobody who waits for any bytes would look"

    def wait(self, mark: str, share: float) -> None:
        partition = self.partition
        offset = round(share * partition.end_offset)
        answers: list[str] = []

        def told(error: BrokerError | None) -> None:
            safe = partition.visible_offset if mark == "visible" else partition.replicated_offset
            assert error is not None or safe >= offset
            answers.append("lost" if error else "safe")

        self.asked.append(answers)
        when = self.high_watermark.when_visible if mark == "visible" else self.high_watermark.when_replicated
        when(partition, offset, told)

    def move(self, shares: tuple[float, float]) -> None:
        partition = self.partition
        before = partition.replicated_offset, partition.visible_offset
        replicated = before[0] + round(shares[0] * (partition.end_offset - before[0]))
        visible = before[1] + round(shares[1] * (replicated - before[1]))
        self.high_watermark.moved(partition, replicated, visible)
        assert (partition.replicated_offset, partition.visible_offset) == (replicated, visible)
        place = partition.visible_position
        if place is not None:
            known = partition.log.locate(0, 1 << 20, upto_offset=visible, upto_position=place)
            searched = partition.log.locate(0, 1 << 20, upto_offset=visible)
            assert known.length == searched.length
            known.release()
            searched.release()

    def lose_and_lead_again(self) -> None:
        self.epoch += 2
        self.broker.engine.partitions.follow(self.partition, leader=2, epoch=self.epoch - 1)
        assert all(len(answers) == 1 for answers in self.asked), "nobody waits for a broker that does not lead"
        self.broker.engine.partitions.lead(self.partition, self.epoch)

    def step(self, what: str, how: object) -> None:
        match what:
            case "write":
                append(self.broker, self.partition, how)  # type: ignore[arg-type]
            case "move":
                self.move(how)  # type: ignore[arg-type]
            case "wait visible" | "wait replicated":
                self.wait(what.split()[1], how)  # type: ignore[arg-type]
            case "flush":
                self.broker.flush()
            case _:
                self.lose_and_lead_again()


@settings(deadline=None, max_examples=examples(60, at_least=60))
@given(STEPS)
def test_each_who_waits_is_told_once_and_no_earlier_than_it_is_so(steps: list[tuple[str, object]]) -> None:
    with TemporaryDirectory() as directory:
        history = History(Path(directory))
        for what, how in steps:
            history.step(what, how)
            assert all(len(answers) <= 1 for answers in history.asked)
        history.high_watermark.moved(history.partition, history.partition.end_offset, history.partition.end_offset)
        assert all(len(answers) == 1 for answers in history.asked)
        assert not history.partition.awaits_visible + history.partition.awaits_replicated
        history.broker.close()
