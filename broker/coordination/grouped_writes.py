"""A small file rewritten off the loop again and again: the caller that changed its content is called back once it is on disk.

One write at a time. What is requested while one runs goes with the next: a thousand changes take two writes, not a thousand, as
with the flushes of a log.
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
    """`snapshot` is called on the loop's thread and returns the job that writes the content as of that moment. All methods run on
    the loop's thread."""

    def __init__(self, store: Store, snapshot: Callable[[], Job]) -> None:
        self._store = store
        self._snapshot = snapshot
        self._asked: list[Then] = []
        self._is_writing = False

    def write(self, then: Then) -> None:
        """Write the current content; `then(None)` is called once it is on disk, `then(error)` if it could not be written."""
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
                except Exception:  # a failing callback must not affect the others
                    logger.exception("who waited for a small file could not be told; this is a defect of the broker")
            if self._asked and not self._is_writing:
                self._begin()

        self._is_writing = True
        try:
            job = self._snapshot()
        except Exception as error:  # otherwise its waiters would wait forever
            logger.exception("a small file could not be put together; this is a defect of the broker")
            written(None, error)
        else:
            self._store(job, written)
