"""A sabotaged broker with clients at work, kept from one case of a test to the next, and set up anew after a failed case."""

from __future__ import annotations

import urllib.error
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from logbus.waiting import wait_until

from tests.support.bystanders import Bystanders
from tests.support.sabotaged_broker import SabotagedBroker
from tests.support.workload import BUSY, KEYED, TRIMMED, Place, Workload

# Calls that prove that the broker's background work continues: compaction, retention, checkpoints.
OWN_WORK = {
    ("open", f"{KEYED}/*.log.cleaned"),
    ("rename", f"{TRIMMED}/*.log"),
    ("replace_bytes", "recovery-point-offset-checkpoint"),
}


class Scene:
    """`with scene as (broker, workload, bystanders)` around each case: everything works at its start. A failed case strikes the
    scene, so that the next case does not fail because of it."""

    def __init__(self, directory: Path, *, steps: Sequence[str] = (), settings: dict[str, str] | None = None) -> None:
        self._directory = directory
        self._steps = steps
        self._settings = {**BUSY, **(settings or {})}
        self._count = 0
        self._stands = False

    def __enter__(self) -> tuple[SabotagedBroker, Workload, Bystanders]:
        if not self._stands or not self.broker.alive:
            self.strike()
            self._count += 1
            self.broker = SabotagedBroker(self._directory / str(self._count), settings=self._settings, steps=self._steps)
            self.broker.start()
            self.workload = Workload(self.broker.bootstrap)
            self.workload.create_topics()
            self.workload.round()
            self.bystanders = Bystanders(self.broker.bootstrap)
            self._stands = True
        return self.broker, self.workload, self.bystanders

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            self.strike()

    def strike(self) -> None:
        """Stop everything."""
        if self._stands:
            self._stands = False
            self.workload.disconnect()
            self.bystanders.__exit__(None, None, None)
            self.broker.stop()

    def all_is_well(self) -> list[Place]:
        """Assert that everything works again without help, and that nothing promised is lost, except for partitions that stay
        offline until a restart. /health must report those, and they are returned."""
        broker, workload = self.broker, self.workload
        pid = broker.pid
        offline = workload.offline()
        if offline:
            assert health(broker)[0] == 503, f"{offline} are offline, and /health does not say so"
            workload.round()  # the others are still served
            assert (broker.pid, broker.alive) == (pid, True)
            workload.disconnect()
            broker.restart()
            workload.check(everything=True, recovered=frozenset(offline))
            self.bystanders = Bystanders(broker.bootstrap)
        assert workload.offline() == []
        wait_until_well(broker)
        wait_until(workload.works, what="a round without an error")
        self._own_work_goes_on()
        workload.check()
        assert self.bystanders.lost() == 0
        return offline

    def _own_work_goes_on(self) -> None:
        """Compaction, retention and checkpoints."""
        missing = set(OWN_WORK)
        self.broker.counts()

        def is_done() -> bool:
            self.workload.round()
            missing.difference_update(self.broker.counts())
            return not missing

        wait_until(is_done, what="the broker's own work")


def wait_until_well(broker: SabotagedBroker) -> None:
    """Wait until /health says that all is well."""

    def is_well() -> bool:
        status, said = health(broker)
        assert status == 200, said
        return True

    wait_until(is_well, what="/health", not_yet=AssertionError)


def health(broker: SabotagedBroker) -> tuple[int, str]:
    """Status and text of /health; status 0 if the connection was lost."""
    try:
        return broker.health()
    except (OSError, urllib.error.URLError) as lost:
        return 0, str(lost)
