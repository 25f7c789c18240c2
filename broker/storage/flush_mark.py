"""`flush-failed`: a file beside a log that says that its pages in memory cannot be believed.

When the disk refuses a flush, the system may keep the pages that it could not write, and call them clean: they can be read, their
checksums match, and the next flush succeeds without them. A start that believed them would show records to consumers that a power
cut then takes. So the broker leaves this mark, and a start that finds it writes everything behind the recovery point once more,
the same bytes to the same place, and flushes that before it believes it. Only then is the mark removed.

The mark need not be durable: it has to live as long as those pages do. After a reboot they are gone, and what can be read is what
the disk holds. Where even the mark cannot be written, the log says so, and what a person can do.
"""

from __future__ import annotations

import logging
from pathlib import Path

from broker.storage.filesystem import FileSystem

logger = logging.getLogger("broker.storage")

FLUSH_FAILED = "flush-failed"


def leave_mark(filesystem: FileSystem, directory: Path) -> None:
    """A flush of the log in `directory` has failed."""
    try:
        filesystem.write_bytes(directory / FLUSH_FAILED, b"", durable=False)
    except OSError as error:
        logger.critical(
            "%s: a flush failed and cannot be noted (%s): make an empty file %s there before the broker is started again, "
            "or reboot the machine; a start that does not know of it may show records that are not on the disk",
            directory,
            error,
            FLUSH_FAILED,
        )


def remove_mark(filesystem: FileSystem, directory: Path) -> None:
    """All that the log holds is on the disk."""
    filesystem.remove(directory / FLUSH_FAILED)
