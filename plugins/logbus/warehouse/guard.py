"""Runs one command for exactly as long as its owner lives.

    python -I guard.py USER LOG COMMAND...

The owner holds the other end of this process's stdin. When it closes, because the owner stopped it or because the
owner died in whatever way (kill -9 included), the command gets SIGINT, which PostgreSQL takes as "fast shutdown". A
pipe and no PR_SET_PDEATHSIG: that one fires when the starting *thread* ends, and only Linux has it. Run by path with
-I and importing nothing of logbus: it starts in a few hundredths of a second and needs no environment.

USER is the account to run the command as, or `-` to keep ours: PostgreSQL refuses to run as root.
"""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
import threading
from typing import Any


def main(arguments: list[str]) -> int:
    user, log_path, *command = arguments
    with open(log_path, "ab") as log:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            umask=0o077,
            **identity(None if user == "-" else user),
        )
    for signal_number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signal_number, lambda *_: child.send_signal(signal.SIGINT))
    threading.Thread(target=stop_at_end_of_input, args=[child], daemon=True).start()
    return child.wait()


def identity(user: str | None) -> dict[str, Any]:
    """What makes Popen run as the account and nothing else: with root's group kept, a folder closed to that group stays shut."""
    return {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []} if user else {}


def stop_at_end_of_input(child: subprocess.Popen[bytes]) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    child.send_signal(signal.SIGINT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
