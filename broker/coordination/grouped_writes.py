"""A small file that is written beside the loop, again and again: whoever changed what it holds is told when that is on the disk.

One write at a time. What is asked for while one runs goes with the next: a thousand changes take two writes and not a thousand,
as with the flushes of a log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger("broker.files")

Job = Callable[[], Any]
Store = Callable[[Job, Callable[[Any, BaseException | None], None]], None]
Then = Callable[[BaseException | None], None]


class GroupedWrites:
    """`snapshot` is called on the loop's thread and gives the job that writes what holds at that moment. All methods run on the
    loop's thread."""

    def __init__(self, store: Store, snapshot: Callable[[], Job]) -> None:
        self._store = store
        self._snapshot = snapshot
        self._asked: list[Then] = []
        self._is_writing = False

    def write(self, then: Then) -> None:
        """Write what holds now; `then(None)` is called once it is on the disk, `then(error)` where it could not be written."""
        self._asked.append(then)
        if not self._is_writing:
            self._begin()

    def until_written(self, go_on: Callable[[Any, BaseException | None], None]) -> None:
        """The same for a chore that waits (`Until`)."""
        self.write(lambda error: go_on(None, error))

    def _begin(self) -> None:
        told, self._asked = self._asked, []

        def written(_: object, error: BaseException | None) -> None:
            self._is_writing = False
            for then in told:
                try:
                    then(error)
                except Exception:  # one that cannot be told is nobody else's business
                    logger.exception("who waited for a small file could not be told; this is a defect of the broker")
            if self._asked and not self._is_writing:
                self._begin()

        self._is_writing = True
        try:
            job = self._snapshot()
        except Exception as error:  # those who wait must not wait forever because of it
            logger.exception("a small file could not be put together; this is a defect of the broker")
            written(None, error)
        else:
            self._store(job, written)
