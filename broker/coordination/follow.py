"""Keeps the image of one broker up to date, and reports what is new.

Persistent state comes from the journal: a watch on its directory, then the entries after `position`, in order. If that is not
possible (the first time, a gap because entries were trimmed, an entry that a newer broker wrote) everything is read
(full_read.py), and the entries written meanwhile are applied before listeners are called. A new session means a full read too,
after the journal: it finds what tools wrote without a journal entry.

Ephemeral state (registered brokers, the controller, leaving brokers) is watched directly. Its nodes are removed when sessions
end, without a transaction of ours that could journal it.

A watch only means "read again"; one that fires while its node is being read causes another read. Watches are lost with the
connection, so every new connection reads everything again. What was not answered is requested again then, or in the next `tick`.
One turn of the loop handles as many answers as fit in two milliseconds (ENTRIES_AT_ONCE, READS_AT_ONCE).

The image never moves backwards. A lagging server of the ensemble may show a new session an older journal: then the image stays as
it is until the journal moves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from broker.coordination import znodes
from broker.coordination.asking import AnswerLost, Asking, Script, ask, children, read_all
from broker.coordination.changes import BrokersChanged, Change, ControllerChanged, LeavingChanged, apply
from broker.coordination.full_read import read_controller, read_image
from broker.coordination.image import BrokerNode, Image
from broker.coordination.journal import decode_changes, entry_path, entry_positions
from broker.coordination.store import Node, Store
from broker.errors import BrokerError, MalformedNode

logger = logging.getLogger("broker.coordination")

ENTRIES_AT_ONCE = 2  # of at most 250 states, one millisecond each


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What has changed in the image since the last call: `changes` in their order, or, if `is_everything`, possibly anything."""

    changes: tuple[Change, ...] = ()
    is_everything: bool = False


Listener = Callable[[Image, News], None]


class ImageFollower:
    """See the module docstring. It listens to the store (StoreEvents); `listen` registers for changes."""

    def __init__(self, store: Store) -> None:
        self.image = Image()
        self.is_known = False  # until then the image is empty, and no listener has been called
        self._listeners: list[Listener] = []
        self._owed: dict[Listener, None] = {}  # listeners that failed on some news: their next call says `is_everything`
        self._session_id = 0
        self._must_read_all = True
        self._draft: Image | None = None  # an image being read, which does not yet match any state that existed
        self._looks: Mapping[str, _Look] = {
            znodes.BROKERS: _Look(store, self._look_at_brokers),
            znodes.LEAVING: _Look(store, self._look_at_leaving),
            znodes.CONTROLLER: _Look(store, self._look_at_controller),
            znodes.CHANGES: _Look(store, self._look_at_journal),
        }
        self._unseen = dict.fromkeys(self._looks)

    def listen(self, listener: Listener) -> None:
        """Call `listener(image, news)` after every change, the first time with everything, once the image is known."""
        self._listeners.append(listener)
        if self.is_known:
            listener(self.image, News(is_everything=True))

    @property
    def unanswered(self) -> str:
        """Why part of the image is missing; empty: every read was answered."""
        return "; ".join(dict.fromkeys(look.unanswered for look in self._looks.values() if look.unanswered))

    # Events of the store

    def connected(self, session_id: int) -> None:
        # Within a session the server has kept our place, and the journal alone brings the image up to date. Between sessions
        # entries may have been trimmed, and tools may have written changes without an entry.
        self._must_read_all |= session_id != self._session_id
        self._session_id = session_id
        for look in self._looks.values():
            look.begin()

    def suspended(self) -> None:
        """The image stays as it is: it may be out of date from now on, as it may be at any time."""

    def changed(self, path: str) -> None:
        if path in self._looks:
            self._looks[path].look_again()

    def tick(self) -> None:
        """About once a second: repeat reads that were not answered, and call listeners that failed again."""
        for listener in list(self._owed):
            self._tell_one(listener, News(is_everything=True))
        for look in self._looks.values():
            look.tick()

    # Ephemeral state

    def _look_at_brokers(self) -> Script[None]:
        names = [name for name in (yield from children(znodes.BROKERS, watch=True)) if name.isdecimal()]
        found = yield from read_all([f"{znodes.BROKERS}/{name}" for name in names])
        brokers: dict[int, BrokerNode] = {}
        for name, node in zip(names, found, strict=True):
            if isinstance(node, Node):
                try:
                    brokers[int(name)] = znodes.decode_broker(int(name), node.data)
                except MalformedNode as error:
                    logger.error("broker %s is left out: %s", name, error)
        self._saw(znodes.BROKERS, BrokersChanged(brokers=dict(sorted(brokers.items()))))

    def _look_at_leaving(self) -> Script[None]:
        names = yield from children(znodes.LEAVING, watch=True)
        self._saw(znodes.LEAVING, LeavingChanged(leaving=frozenset(int(name) for name in names if name.isdecimal())))

    def _look_at_controller(self) -> Script[None]:
        self._saw(znodes.CONTROLLER, ControllerChanged(controller=(yield from read_controller())))

    def _saw(self, path: str, change: Change) -> None:
        self.image, news = apply(self.image, (change,))
        was_known = self.is_known
        self._seen(path)
        if news and was_known:
            self._tell(News(changes=news))

    # Persistent state

    def _look_at_journal(self) -> Script[None]:
        self._draft = None
        if znodes.CHANGES not in self._unseen and not (yield from self._catch_up()):
            self._must_read_all = True
        while self._must_read_all:
            positions = entry_positions((yield from children(znodes.CHANGES, watch=True)))
            position = positions[-1] if positions else -1
            if position < self.image.position:
                logger.error(
                    "ZooKeeper's journal ends at %d, and this broker has seen %d: the broker goes on with what it knows. If this "
                    "does not pass, ZooKeeper has lost data: restore it",
                    position,
                    self.image.position,
                )
                return
            self._draft = yield from read_image(position)
            if (yield from self._catch_up()):
                self._adopt(self._draft)

    def _catch_up(self) -> Script[bool]:
        """Apply the entries after the position of the image, or of the draft. False: one is missing, or cannot be decoded."""
        names = yield from children(znodes.CHANGES, watch=True)
        positions = [position for position in entry_positions(names) if position > self._position]
        # Each entry is applied as soon as it is read, not once all are: if the connection breaks halfway, the image matches a
        # state that existed, and `position` says which.
        for begin in range(0, len(positions), ENTRIES_AT_ONCE):
            some = positions[begin : begin + ENTRIES_AT_ONCE]
            found = yield from read_all([entry_path(position) for position in some])
            for position, node in zip(some, found, strict=True):
                if position != self._position + 1 or not isinstance(node, Node):
                    logger.info("the journal has a gap after %d: everything is read", self._position)
                    return False
                try:
                    self._advance(position, decode_changes(node.data))
                except MalformedNode as error:
                    logger.warning("entry %d of the journal says nothing to this broker, everything is read: %s", position, error)
                    return False
        return True

    @property
    def _position(self) -> int:
        return self.image.position if self._draft is None else self._draft.position

    def _advance(self, position: int, changes: tuple[Change, ...]) -> None:
        if self._draft is not None:
            self._draft = replace(apply(self._draft, changes)[0], position=position)
            return
        image, news = apply(self.image, changes)
        self.image = replace(image, position=position)
        if news:
            self._tell(News(changes=news))

    def _adopt(self, draft: Image) -> None:
        now = self.image
        self.image = replace(draft, brokers=now.brokers, controller=now.controller, leaving=now.leaving)
        self._draft = None
        self._must_read_all = False
        was_known = self.is_known
        self._seen(znodes.CHANGES)
        if was_known:
            self._tell(News(is_everything=True))

    def _seen(self, path: str) -> None:
        self._unseen.pop(path, None)
        if not self._unseen and not self.is_known:
            self.is_known = True
            self._tell(News(is_everything=True))

    def _tell(self, news: News) -> None:
        if self.is_known:
            for listener in self._listeners:
                self._tell_one(listener, replace(news, is_everything=news.is_everything or listener in self._owed))

    def _tell_one(self, listener: Listener, news: News) -> None:
        """A listener that fails must not stop the image from being updated, nor the others from being called."""
        try:
            listener(self.image, news)
        except Exception:
            logger.exception("news of the cluster could not be acted on; this is a defect of the broker")
            self._owed[listener] = None
        else:
            self._owed.pop(listener, None)


class _Look:
    """Reads one part of the state, one read at a time."""

    def __init__(self, store: Store, script: Callable[[], Script[None]]) -> None:
        self._store = store
        self._script = script
        self._asking: Asking[None] | None = None
        self._is_owed = False
        self.unanswered = ""  # why the last read failed

    def begin(self) -> None:
        """Start over: the connection may be new, and any answers to earlier requests are then out of date."""
        if self._asking is not None:
            self._asking.stop()
        self._is_owed = False
        self._asking = ask(self._store, self._script(), self._end)

    def look_again(self) -> None:
        if self._asking is None:
            self.begin()
        else:
            self._is_owed = True

    def tick(self) -> None:
        if self._is_owed and self._asking is None:
            self.begin()

    def _end(self, _: None, error: BrokerError | None) -> None:
        self._asking = None
        self.unanswered = "" if error is None else str(error)
        if error is not None:
            self._is_owed = True
            if not isinstance(error, AnswerLost):
                logger.error("%s", error)
        elif self._is_owed:
            self.begin()
