"""The `Store` on a real ZooKeeper; the only file that uses kazoo.

kazoo is used only for the protocol: one of its threads reads and writes the socket, and whatever arrives (answers, watches,
states) is appended to one deque in the order in which it came off the wire. `drain` handles that on the loop. kazoo's own handler
has one thread for answers and another for watches, which loses that order and lets a slow callback hold up all others: ours calls
everything on the socket's thread, where nothing but an append is done.

kazoo's view of the connection is never relied on. It reports LOST only after a server has said so, so a client that is cut off
never learns that its session is over; after the process was suspended it reports CONNECTED until its thread has run. A session is
identified by its id. How long to wait for an answer is decided here, by our clock: kazoo keeps requests while it is suspended and
may send them much later. They are conditional on versions, so a late one does no harm, and its answer is ignored.

TLS is ours, too (`Access`): kazoo would also trust every authority of the operating system, and would wait for the socket while
bytes that have been decrypted are waiting for it.

kazoo's thread pings, so a session would outlive a loop that a hanging disk holds up inside a write, and nobody could take over
from a broker that answers nobody. So that thread waits for the loop once `drain` has not been called for `silence_seconds_max`:
the session ends as that of a stopped process does.

The chroot is prepended to each path here rather than by kazoo, whose client cannot create a missing chroot. A connection counts
from the moment the chroot exists.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any, TypeVar

from kazoo.client import KazooClient, KazooState, TransactionRequest
from kazoo.exceptions import (
    BadVersionError,
    InvalidACLError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.handlers.threading import AsyncResult, SequentialThreadingHandler
from kazoo.protocol.states import EventType, WatchedEvent
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL

from logbus_broker import logs
from logbus_broker.clock import Clock
from logbus_broker.cluster import store
from logbus_broker.errors import BrokerError, StartupError

logger = logging.getLogger("broker.zookeeper")

_CONNECT_SECONDS_MAX = 0.5  # kazoo would wait a whole session for one host that does not answer
_DRAIN_SECONDS = 0.003  # per turn
_RESTART_SECONDS = 1.0  # between a failure of kazoo's thread and the next attempt
_LOOP_POLL_SECONDS = 0.1
_ACCEPTED_IN_VAIN = 10  # connections in a row without a session, before that is logged: a server that starts does a few
_NO_VERSION = -1
_ANSWER_SECONDS_MAX = 60.0  # of a command: a session and its back-off; longer is an absent ZooKeeper

Result = TypeVar("Result")

_REASONS = {
    NodeExistsError: store.Reason.NODE_EXISTS,
    NoNodeError: store.Reason.NO_NODE,
    BadVersionError: store.Reason.BAD_VERSION,
    NotEmptyError: store.Reason.NOT_EMPTY,
}

# What an operator has to be told rather than kazoo's name of it.
_FORBIDDEN = {
    NoAuthError: "the znode's ACL does not allow it: check logbus.zookeeper.auth.file, and the certificate shown to ZooKeeper",
    InvalidACLError: "ZooKeeper does not know who this broker is: check logbus.zookeeper.auth.file, and zookeeper.set.acl",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How ZooKeeper is reached, and who this broker is there. `encrypt` returns the encrypted socket for a socket and the name of
    its host; it may show a certificate. `identity` is a `NAME:PASSWORD` of ZooKeeper's scheme digest. With `is_private`, only the
    same identities may read and change what is created."""

    encrypt: Callable[[Any, str], Any] | None = None
    identity: str = field(default="", repr=False)
    is_private: bool = False


OPEN = Access()

_Asked = tuple[float, Callable[[AsyncResult], Any], Callable[[Any], None]]  # deadline, decoder of its answer, callback


class ZooKeeperStore:
    """See the module docstring. `connect` is the checked text of the setting, `host:port,host:port/chroot`; `wake` is called from
    kazoo's thread whenever something waits for `drain`."""

    def __init__(
        self,
        connect: str,
        session_timeout_ms: int,
        wake: Callable[[], None],
        *,
        clock: Clock,
        access: Access = OPEN,
        silence_seconds_max: float = math.inf,
    ) -> None:
        hosts, slash, below = connect.partition("/")
        self._chroot = slash + below
        self._has_chroot = not self._chroot
        self.session_id = 0
        self._wake = wake
        self._clock = clock
        self._timeout = session_timeout_ms / 1000
        self._events: store.StoreEvents | None = None
        self._arrived: deque[tuple[Callable[..., None], Any]] = deque()  # append and popleft are atomic
        self._is_woken = False
        self._is_connected = False  # used by kazoo's thread only
        self._asked: dict[AsyncResult, _Asked] = {}  # ordered by deadline
        self.silence_seconds_max = silence_seconds_max
        self._drained_at = math.inf  # not before the loop runs
        self._handler = _Handler(partial(self._post, self._answered), access.encrypt, self._wait_for_loop)
        self._client = KazooClient(
            hosts=hosts,
            timeout=self._timeout,
            handler=self._handler,
            connection_retry=_retry_for_ever(self._timeout),
            auth_data=[("digest", access.identity)] if access.identity else None,
            default_acl=CREATOR_ALL_ACL if access.is_private else None,
            logger=logging.getLogger("broker.zookeeper.client"),
        )
        self._client.logger.setLevel(logging.WARNING)  # below that it logs every attempt
        self._client.add_listener(self._state_changed)

    def begin(self, events: store.StoreEvents) -> None:
        """Connect, and keep trying forever. Names are resolved and connections made on kazoo's thread."""
        self._events = events
        self._client.start_async()

    def read(self, path: str, then: Callable[[store.Found], None], *, watch: bool = False) -> None:
        """A node's data. A watch needs a separate request first: reading sets none on a node that does not exist."""
        if watch and self.session_id:
            self._client.exists_async(self._chroot + path, watch=self._fired)
        self._ask(lambda: self._client.get_async(self._chroot + path), _found, then)

    def children(self, path: str, then: Callable[[store.Children], None], *, watch: bool = False) -> None:
        """The names below a node."""
        watcher = self._fired if watch else None
        self._ask(lambda: self._client.get_children_async(self._chroot + path or "/", watch=watcher), _children, then)

    def commit(self, operations: Sequence[store.Operation], then: Callable[[store.Outcome], None]) -> None:
        """All operations or none."""
        assert store.transaction_bytes(operations) <= store.TRANSACTION_BYTES_MAX, "a transaction is too large for ZooKeeper"
        self._ask(partial(self._send, operations, self._chroot), partial(_outcome, tuple(operations), len(self._chroot)), then)

    def drain(self) -> None:
        """Handle what has arrived, then what is overdue; a thousand answers are too much for one turn."""
        self._is_woken = False
        self._drained_at = self._clock.monotonic()
        if not self._arrived and not self._asked:
            return
        end = self._clock.monotonic() + _DRAIN_SECONDS
        while self._arrived:
            handle, argument = self._arrived.popleft()
            _guarded(handle, argument)
            if self._clock.monotonic() >= end:
                self._is_woken = True
                self._wake()
                return
        self._expire(self._clock.monotonic())

    def next_deadline(self) -> float:
        """When `drain` has something to do even if nothing arrives."""
        return next(iter(self._asked.values()))[0] if self._asked else math.inf

    def close(self, then: Callable[[], None]) -> None:
        """End the session. kazoo waits for its thread, so this runs on another one."""
        self._handler.is_closing = True
        threading.Thread(target=self._stop, args=(then,), name="zookeeper-close", daemon=True).start()

    def _stop(self, then: Callable[[], None]) -> None:
        try:
            self._client.stop()
            self._client.close()
        except Exception:
            logger.exception("could not close the connection to ZooKeeper; the session will expire")
        self._post(lambda _: then(), None)

    # --- asking, on the loop

    def _ask(self, send: Callable[[], AsyncResult], meaning: Callable[[AsyncResult], Any], then: Callable[[Any], None]) -> None:
        if not self.session_id:
            self._post(then, store.Unknown(detail="not connected yet"))
        else:
            self._expect(send(), meaning, then)

    def _expect(self, result: AsyncResult, meaning: Callable[[AsyncResult], Any], then: Callable[[Any], None]) -> None:
        self._asked[result] = (self._clock.monotonic() + self._timeout, meaning, then)

    def _send(self, operations: Sequence[store.Operation], below: str) -> AsyncResult:
        transaction = self._client.transaction()
        for operation in operations:
            _ADD[type(operation)](transaction, below, operation)
        return transaction.commit_async()

    def _expire(self, now: float) -> None:
        while self._asked:
            result, (deadline, _, then) = next(iter(self._asked.items()))
            if deadline > now:
                return
            del self._asked[result]
            _guarded(then, store.Unknown(detail=f"no answer within {self._timeout:g} s"))

    def _answered(self, result: AsyncResult) -> None:
        """The answer to a request; one that is no longer waited for, or never was, is ignored."""
        request = self._asked.pop(result, None)
        if request is not None:
            _, meaning, then = request
            then(meaning(result))

    def _connected(self, session_id: int) -> None:
        if self._has_chroot:
            self._announce(session_id)
        else:
            self._make_chroot(session_id)

    def _announce(self, session_id: int) -> None:
        assert self._events is not None
        if session_id != self.session_id:
            logger.info("connected to ZooKeeper: session %#x", session_id & (1 << 64) - 1)
            self.session_id = session_id
        self._events.connected(session_id)

    def _suspended(self, _: None) -> None:
        assert self._events is not None
        logger.warning("lost the connection to ZooKeeper; reconnecting")
        if self.session_id:
            self._events.suspended()

    def _changed(self, path: str) -> None:
        assert self._events is not None
        self._events.changed(path)

    def _make_chroot(self, session_id: int) -> None:
        """If the connection is lost in the meantime, this is repeated on the next one."""
        for path in accumulate(f"/{name}" for name in self._chroot.split("/")[1:]):
            operations = (store.Create(path=path),)
            self._expect(self._send(operations, ""), partial(_outcome, operations, 0), lambda _: None)
        self._expect(self._client.get_async(self._chroot), _found, partial(self._look_for_chroot, session_id))

    def _look_for_chroot(self, session_id: int, node: store.Found) -> None:
        if isinstance(node, store.Node):
            self._has_chroot = True
            self._announce(session_id)
        elif isinstance(node, store.Unknown):
            logger.error("cannot read the chroot %s of zookeeper.connect: %s", self._chroot, node.detail)
        elif isinstance(node, store.NoNode):
            logger.error(
                "the chroot %s of zookeeper.connect does not exist, and ZooKeeper does not let this broker create it: create it "
                "with ZooKeeper's own tool and restart the broker",
                self._chroot,
            )

    # --- on kazoo's thread: append and wake, nothing else

    def _wait_for_loop(self) -> None:
        if self._clock.monotonic() - self._drained_at > self.silence_seconds_max:
            logger.critical(
                "the loop has been held up for %g s, most likely by a disk that does not answer: the session with ZooKeeper ends",
                self.silence_seconds_max,
            )
            while self._clock.monotonic() - self._drained_at > self.silence_seconds_max:
                time.sleep(_LOOP_POLL_SECONDS)

    def _post(self, handle: Callable[..., None], argument: Any) -> None:
        self._arrived.append((handle, argument))
        if not self._is_woken:
            self._is_woken = True
            self._wake()

    def _state_changed(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._handler.accepted = 0
            self._post(self._connected, self._client.client_id[0])
            self._is_connected = True
        elif self._is_connected and not self._handler.is_closing:  # LOST follows SUSPENDED, or replaces it
            self._post(self._suspended, None)
            self._is_connected = False

    def _fired(self, event: WatchedEvent) -> None:
        if event.type != EventType.NONE:  # NONE is how kazoo reports that it has dropped the watch
            self._post(self._changed, event.path[len(self._chroot) :] or "/")


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """How kazoo calls back: at once, on the socket's thread. It also keeps that thread alive, since an exception that kazoo does
    not expect would end it, and the connection would never be restored."""

    def __init__(
        self, arrived: Callable[[AsyncResult], None], encrypt: Callable[[Any, str], Any] | None, before_wait: Callable[[], None]
    ) -> None:
        super().__init__()
        self._before_wait = before_wait
        self.arrived = arrived
        self._encrypt = encrypt
        self.is_closing = False
        self.accepted = 0  # connections since the last session

    @property
    def running(self) -> bool:
        """Whether there are threads for callbacks; without them kazoo calls back directly."""
        return False

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def dispatch_callback(self, callback: Any) -> None:
        callback.func(*callback.args)

    def async_result(self) -> AsyncResult:
        return _Result(self)

    def create_connection(self, *args: Any, hostname: str, timeout: float, **options: Any) -> Any:
        sock = super().create_connection(*args, timeout=min(timeout, _CONNECT_SECONDS_MAX), **options)
        self.accepted += 1
        if self.accepted == _ACCEPTED_IN_VAIN:
            # It refuses a client that has seen newer data than its own, without a word to that client.
            logger.error(
                "ZooKeeper at %s accepts connections, and ends each of them: either it has no majority of its servers, or it has "
                "lost data that this broker has seen; its own log says which",
                hostname,
            )
        if self._encrypt is None:
            return sock
        try:
            sock.settimeout(timeout)
            return self._encrypt(sock, hostname)
        except OSError as error:
            sock.close()
            logger.error("no encryption with ZooKeeper at %s: %s (zookeeper.connect, zookeeper.ssl.*)", hostname, error)
            raise

    def select(self, readers: Sequence[Any], writers: Sequence[Any], errors: Sequence[Any], timeout: float | None = None) -> Any:
        self._before_wait()
        decrypted = [reader for reader in readers if hasattr(reader, "pending") and reader.pending()]
        ready = super().select(readers, writers, errors, 0 if decrypted else timeout)
        return [*decrypted, *(reader for reader in ready[0] if reader not in decrypted)], *ready[1:]

    def spawn(self, func: Callable[..., None], *args: Any, **kwargs: Any) -> threading.Thread:
        def keep_running() -> None:
            while True:
                try:
                    func(*args, **kwargs)
                except Exception as error:  # kazoo has logged the traceback
                    logger.error("the connection to ZooKeeper failed unexpectedly and is opened again: %r", error)
                if self.is_closing:
                    return
                time.sleep(_RESTART_SECONDS)

        thread = threading.Thread(target=keep_running, name="zookeeper", daemon=True)
        thread.start()
        return thread


class _Result(AsyncResult):  # type: ignore[misc]
    """An answer that announces itself as it arrives, so that nothing else can be handled before it."""

    def set(self, value: Any = None) -> None:
        super().set(value)
        self._handler.arrived(self)

    def set_exception(self, exception: BaseException) -> None:
        super().set_exception(exception)
        self._handler.arrived(self)


def run_to_end(opened: Callable[[Callable[[], None]], store.Store], script: store.Script[Result], clock: Clock) -> Result:
    """The script's result from a store that `opened(wake)` makes, for a command without a loop; StartupError where nothing
    answers."""
    arrived, outcome = threading.Event(), list[tuple[Result | None, BrokerError | None]]()
    zookeeper = opened(arrived.set)

    class Connected(store.StoreEvents):
        def connected(self, session_id: int) -> None:
            if not outcome:
                store.run_script(zookeeper, script, lambda result, error: outcome.append((result, error)))

    zookeeper.begin(Connected())
    until = clock.monotonic() + _ANSWER_SECONDS_MAX
    while not outcome and clock.monotonic() < until:
        arrived.wait(0.1)
        arrived.clear()
        zookeeper.drain()
    ended = list[None]()
    zookeeper.close(lambda: ended.append(None))
    if not outcome:
        raise StartupError(f"ZooKeeper did not answer for {_ANSWER_SECONDS_MAX:.0f} s")
    (result, error), *_ = outcome
    if error is not None or result is None:
        raise StartupError(f"ZooKeeper: {error}")
    return result


def _retry_for_ever(session_timeout: float) -> KazooRetry:
    """kazoo's own back-off doubles almost without limit, so that even an outage shorter than the session would end the session.
    Each delay is derived from the previous one: without some growth they would shrink to nothing in a long outage."""
    most = session_timeout / 20
    return KazooRetry(max_tries=-1, delay=min(0.1, most), backoff=1.5, max_jitter=0.3, max_delay=most)


def _guarded(handle: Callable[[Any], None], argument: Any) -> None:
    """A callback that raises is a defect, and must not affect the others."""
    try:
        handle(argument)
    except Exception:
        logs.log_bug("handling a response of ZooKeeper failed")


# --- what to send

_ADD: dict[type, Callable[[TransactionRequest, str, Any], None]] = {
    store.Create: lambda transaction, below, create: transaction.create(
        below + create.path, create.data, ephemeral=create.is_ephemeral, sequence=create.is_sequential
    ),
    store.Set: lambda transaction, below, change: transaction.set_data(below + change.path, change.data, change.version),
    store.Delete: lambda transaction, below, delete: transaction.delete(below + delete.path, delete.version),
    store.Check: lambda transaction, below, check: transaction.check(below + check.path, check.version),
}


# --- what an answer means


def _found(result: AsyncResult) -> store.Found:
    try:
        data, stat = result.get_nowait()
    except NoNodeError:
        return store.NoNode()
    except Exception as error:
        return _unknown(error)
    birth = (stat.czxid, stat.ctime)
    return store.Node(data=data or b"", version=stat.version, ephemeral_owner=stat.ephemeralOwner, birth=birth)


def _children(result: AsyncResult) -> store.Children:
    try:
        return tuple(sorted(result.get_nowait()))
    except NoNodeError:
        return store.NoNode()
    except Exception as error:
        return _unknown(error)


def _outcome(operations: Sequence[store.Operation], chroot_length: int, result: AsyncResult) -> store.Outcome:
    """A refused transaction returns a list, too: "rolled back" up to the cause, which is what we look for, and "inconsistent"
    after it."""
    try:
        answers = result.get_nowait()
    except Exception as error:
        return _unknown(error)
    for index, answer in enumerate(answers):
        if isinstance(answer, Exception) and not isinstance(answer, RolledBackError | RuntimeInconsistency):
            detail = _FORBIDDEN.get(type(answer)) or type(answer).__name__
            return store.Refused(index=index, reason=_REASONS.get(type(answer), store.Reason.OTHER), detail=detail)
    pairs = [
        (0, answer[chroot_length:])
        if isinstance(operation, store.Create)
        else (answer.version if isinstance(operation, store.Set) else _NO_VERSION, operation.path)
        for operation, answer in zip(operations, answers, strict=True)
    ]
    return store.Committed(versions=tuple(version for version, _ in pairs), paths=tuple(path for _, path in pairs))


def _unknown(error: Exception) -> store.Unknown:
    return store.Unknown(detail=_FORBIDDEN.get(type(error)) or str(error) or type(error).__name__)
