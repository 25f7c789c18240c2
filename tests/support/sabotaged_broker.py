"""The test's side of `tests.support.saboteur`: a broker like any other, which can be given orders."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from logbus.waiting import PATIENCE_SECONDS

from benchmarks.processes import free_port
from tests.support.broker import LogbusBroker
from tests.support.saboteur import BEFORE

# How long failed work rests before it is tried again.
SHORT_PAUSES = (
    "logbus_broker.log.cleaner:REST_SECONDS_MIN=0.2",
    "logbus_broker.log.cleaner:REST_SECONDS_MAX=0.5",
    "logbus_broker.engine:_DEFECTIVE_PAUSE_SECONDS=0.2",
)


class SabotagedBroker(LogbusBroker):
    """Started with wrappers around `steps`. Serves its health on a separate port."""

    def __init__(self, directory: Path, *, settings: dict[str, str] | None = None, steps: Sequence[str] = ()) -> None:
        self.health_port = free_port()
        listener = f"http://127.0.0.1:{self.health_port}"
        super().__init__(directory, settings={"logbus.metrics.listener": listener, **(settings or {})})
        self._steps = steps

    def command(self) -> list[str]:
        plain = super().command()
        module = plain.index("logbus_broker")
        own = [f"--step={step}" for step in self._steps] + [f"--set={constant}" for constant in SHORT_PAUSES]
        return [*plain[:module], "tests.support.saboteur", *own, *plain[module + 1 :]]

    def launch(self) -> None:
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=self.cwd, start_new_session=True
            )

    def stop(self) -> int:
        process, status = self._process, super().stop()
        for pipe in (process.stdin, process.stdout) if process else ():
            if pipe is not None:
                pipe.close()
        return status

    # Orders

    def fail(self, what: str, where: str = "", *, error: str, skip: int = 0, times: int = 1, when: str = BEFORE) -> None:
        """The next `times` calls of `what`, after the first `skip`, raise `error`."""
        self._order("fail", what=what, where=where, error=error, skip=skip, times=times, when=when)

    @property
    def left(self) -> int:
        """How many ordered failures have not happened yet."""
        return sum(self._order("left"))

    def forget(self) -> None:
        """Drop all orders: nothing fails from now on."""
        self._order("forget")

    def counts(self) -> Counter[tuple[str, str]]:
        """How often each call was made since the last request for counts."""
        return Counter({(what, where): count for what, where, count in self._order("counts")})

    def _order(self, do: str, **details: Any) -> Any:
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"do": do, **details}).encode() + b"\n")
        process.stdin.flush()
        line = process.stdout.readline()
        assert line, f"the broker has ended with status {process.wait()}"
        return json.loads(line)

    # Its health and log

    def health(self) -> tuple[int, str]:
        """Status and text of /health."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.health_port}/health", timeout=PATIENCE_SECONDS) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode()

    def log_since(self, position: int) -> str:
        """What was logged after the first `position` bytes."""
        with self.log_path.open("rb") as log:
            log.seek(position)
            return log.read().decode(errors="replace")

    @property
    def log_bytes(self) -> int:
        return self.log_path.stat().st_size
