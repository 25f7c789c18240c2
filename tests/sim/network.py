"""The network of a simulation: machines, one-way links, connections whose bytes arrive late, in order, or not at all.

A cut link holds what is sent until it is healed, as TCP retransmits; a link that resets ends its connections. The kernel of a
stopped process keeps accepting and receiving; that of a killed one resets its connections and refuses new ones; a machine
without power is silent, and one that is back resets segments of its earlier connections.

A socket has what `logbus_broker.network.Connection` needs; `owner` is notified when there is something to read or room to write.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from tests.sim.world import World


class Owner(Protocol):
    """The holder of a socket."""

    def readable(self, sock: SimSocket) -> None: ...

    def writable(self, sock: SimSocket) -> None: ...


class SimSocket:
    """One end of a connection."""

    def __init__(self, network: Network, host: str, peer_host: str) -> None:
        self.host = host
        self.peer_host = peer_host
        self.owner: Owner | None = None
        self.peer: SimSocket | None = None
        self.inbox = bytearray()
        self.has_ended = False  # the other end sends nothing more
        self.was_reset = False
        self.is_closed = False
        self.is_dead = False  # its machine has forgotten it
        self.arrives_at = 0  # when the last thing sent arrives: nothing overtakes it
        self.blocked_until = 0
        self._network = network

    # What a connection of the broker calls

    def fileno(self) -> int:
        return -1

    def recv_into(self, view: memoryview) -> int:
        if self.was_reset:
            raise ConnectionResetError("reset by peer")
        count = min(len(view), len(self.inbox))
        if not count:
            if self.has_ended:
                return 0
            raise BlockingIOError
        view[:count] = self.inbox[:count]
        del self.inbox[:count]
        return count

    def send(self, data: bytes | memoryview, flags: int = 0) -> int:
        if self.was_reset or self.is_closed:
            raise ConnectionResetError("reset by peer")
        if self.blocked_until > self._network.world.now:
            raise BlockingIOError
        self._network.carry(self, bytes(data))
        return len(data)

    def sendmsg(self, buffers: list[bytes | memoryview], ancillary: tuple[()] = (), flags: int = 0) -> int:
        return self.send(b"".join(buffers))

    def close(self) -> None:
        if not self.is_closed and not self.is_dead:
            self.is_closed = True
            if not self.was_reset:
                self._network.carry(self, None)

    # What clients call

    def take(self) -> bytes:
        """Everything that has arrived."""
        taken = bytes(self.inbox)
        self.inbox.clear()
        return taken


class Link:
    """What one machine sends to another."""

    def __init__(self, base: int = 200, jitter: int = 300) -> None:
        self.base = base
        self.jitter = jitter
        self.is_cut = False
        self.held: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.clear_at = 0  # when everything held has arrived: nothing overtakes it


class Network:
    """All machines and their connections."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._links: dict[tuple[str, str], Link] = {}
        self._listening: dict[str, Callable[[SimSocket], None]] = {}
        self._without_power: dict[str, bool] = {}
        self._sockets: dict[str, dict[SimSocket, None]] = {}
        self._chance = world.chance("network")

    def link(self, source: str, target: str) -> Link:
        return self._links.setdefault((source, target), Link())

    # Machines

    def listen(self, host: str, accept: Callable[[SimSocket], None]) -> None:
        """From now on a process on `host` accepts connections."""
        self._listening[host] = accept

    def process_ended(self, host: str) -> None:
        """The kernel resets its connections and refuses new ones."""
        self._listening.pop(host, None)
        for sock in list(self._sockets.pop(host, ())):
            if not sock.is_closed:
                self.carry(sock, None, is_reset=True)
            sock.is_dead = sock.is_closed = True

    def power_off(self, host: str) -> None:
        """No peer is notified."""
        self._listening.pop(host, None)
        self._without_power[host] = True
        for sock in self._sockets.pop(host, {}):
            sock.is_dead = sock.is_closed = True

    def power_on(self, host: str) -> None:
        self._without_power.pop(host, None)

    # Links

    def cut(self, source: str, target: str) -> None:
        self.link(source, target).is_cut = True

    def heal(self, source: str, target: str) -> None:
        """Everything held is sent again, in order."""
        link = self.link(source, target)
        link.is_cut = False
        held, link.held = link.held, []
        delay = self._delay(link)
        link.clear_at = self.world.now + delay
        for arrive, arguments in held:
            self.world.after(delay, arrive, *arguments)

    def reset_between(self, host: str, other: str) -> None:
        """A middlebox between the two ends all their connections."""
        for sock in [sock for sock in self._sockets.get(host, ()) if sock.peer_host == other]:
            for end in (sock, sock.peer):
                if end is not None:
                    self._reset(end)

    def _delay(self, link: Link) -> int:
        return link.base + self._chance.randint(0, link.jitter)

    def _travel(self, source: str, target: str, arrive: Callable[..., None], *arguments: Any, not_before: int = 0) -> int:
        """Send it over the link; returns when it arrives, unless the link is cut."""
        link = self.link(source, target)
        at = max(self.world.now + self._delay(link), not_before, link.clear_at)
        if link.is_cut:
            link.held.append((arrive, arguments))
        else:
            self.world.after(at - self.world.now, arrive, *arguments)
        return at

    # Connections

    def connect(self, host: str, target: str, then: Callable[[SimSocket | None], None]) -> None:
        """`then(sock)`, or `then(None)` if `target` refuses; neither if no answer comes."""
        self._travel(host, target, self._syn, host, target, then)

    def _syn(self, host: str, target: str, then: Callable[[SimSocket | None], None]) -> None:
        if target in self._without_power:
            return
        accept = self._listening.get(target)
        if accept is None:
            self._travel(target, host, then, None)
            return
        near, far = SimSocket(self, host, target), SimSocket(self, target, host)
        near.peer, far.peer = far, near
        self._sockets.setdefault(host, {})[near] = None
        self._sockets.setdefault(target, {})[far] = None
        far.arrives_at = self._travel(target, host, then, near)
        accept(far)

    def carry(self, sock: SimSocket, data: bytes | None, *, is_reset: bool = False) -> None:
        """Bytes, or an end, to the other side."""
        peer = sock.peer
        assert peer is not None, "connected"
        if data is None:
            self._sockets.get(sock.host, {}).pop(sock, None)
        sock.arrives_at = self._travel(sock.host, sock.peer_host, self._arrived, peer, data, is_reset, not_before=sock.arrives_at)

    def _arrived(self, sock: SimSocket, data: bytes | None, is_reset: bool) -> None:
        if sock.is_dead or sock.is_closed:
            if data is not None and sock.host not in self._without_power:
                self._travel(sock.host, sock.peer_host, self._reset, sock.peer)
            return
        if is_reset:
            self._reset(sock)
            return
        if data is None:
            sock.has_ended = True
        else:
            sock.inbox += data
        if sock.owner is not None:
            sock.owner.readable(sock)

    def _reset(self, sock: SimSocket) -> None:
        if sock.is_dead or sock.is_closed:
            return
        sock.was_reset = True
        sock.inbox.clear()
        self._sockets.get(sock.host, {}).pop(sock, None)
        if sock.owner is not None:
            sock.owner.readable(sock)

    def block(self, sock: SimSocket, delay: int) -> None:
        """The other side takes nothing for a while."""
        sock.blocked_until = self.world.now + delay
        self.world.after(delay, self._unblocked, sock)

    def _unblocked(self, sock: SimSocket) -> None:
        if sock.owner is not None and not sock.is_closed:
            sock.owner.writable(sock)

    def block_all(self, host: str, delay: int) -> None:
        """No peer takes anything from this machine for a while."""
        for sock in self._sockets.get(host, ()):
            self.block(sock, delay)
