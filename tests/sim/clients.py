"""Clients of a simulation: producers, consumers, admins. They do no I/O of their own, speak the wire protocol's bytes, and record
what they requested and what was answered (histories.py).

They behave like Kafka's own: they find leaders by Metadata, retry what may be retried, keep up to five batches in flight, number
them if they are idempotent, and record which outcomes are unknown. What they will do is drawn from their own random stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from logbus_broker.protocol.api import ApiKey
from logbus_broker.protocol.batch import BATCH_HEADER_BYTES, CRC_START, crc32c, read_header
from logbus_broker.protocol.records import NewRecord, build_batch, read_records

from tests.sim import wire
from tests.sim.histories import History
from tests.sim.network import Network, SimSocket
from tests.sim.world import MS, SECOND, START_MS, World

BACK_OFF = 50 * MS
REQUEST_TIMEOUT = 2 * SECOND
IN_FLIGHT_MAX = 5

Then = Callable[[bytes | None], None]  # an answer's body; None: the connection was lost, or no answer came in time


class Wire:
    """One client's connection to one broker: opened when needed, answers in the order of the requests."""

    def __init__(self, world: World, network: Network, host: str, target: str) -> None:
        self._world = world
        self._network = network
        self._host = host
        self.target = target
        self._sock: SimSocket | None = None
        self._connecting = 0  # number of the attempt in progress; 0: none
        self._attempts = 0
        self._unsent: list[bytes] = []
        self._waiting: deque[tuple[int, ApiKey, Then]] = deque()  # by correlation id
        self._inbox = bytearray()
        self._sent = 0

    def ask(self, api_key: ApiKey, body: bytes, then: Then, *, timeout: int = REQUEST_TIMEOUT) -> None:
        self._sent += 1
        number = self._sent
        self._waiting.append((number, api_key, then))
        self._transmit(wire.frame(api_key, number, body))
        self._world.after(timeout, self._overdue, number)

    def tell(self, api_key: ApiKey, body: bytes) -> None:
        """Send a request that has no answer: acks=0."""
        self._sent += 1
        self._transmit(wire.frame(api_key, self._sent, body))

    def _transmit(self, data: bytes) -> None:
        if self._sock is not None:
            try:
                self._sock.send(data)
            except OSError:
                self._lost()
            return
        self._unsent.append(data)
        if not self._connecting:
            self._attempts += 1
            attempt = self._connecting = self._attempts
            self._network.connect(self._host, self.target, lambda sock: self._connected(sock, attempt))

    def _connected(self, sock: SimSocket | None, attempt: int) -> None:
        if attempt != self._connecting:
            if sock is not None:
                sock.close()
            return
        self._connecting = 0
        if sock is None:
            self._lost()
            return
        self._sock = sock
        sock.owner = self
        unsent, self._unsent = self._unsent, []
        for data in unsent:
            if self._sock is sock:
                self._transmit(data)

    def readable(self, sock: SimSocket) -> None:
        if sock is not self._sock:
            return
        if sock.was_reset:
            self._lost()
            return
        self._inbox += sock.take()
        while len(self._inbox) >= 4:
            size = 4 + int.from_bytes(self._inbox[:4], "big")
            if len(self._inbox) < size:
                break
            answer = bytes(self._inbox[4:size])
            del self._inbox[:size]
            number, api_key, then = self._waiting.popleft()
            assert number == int.from_bytes(answer[:4], "big"), "answers come in the order of their requests"
            then(wire.body_of(api_key, answer))
        if sock.has_ended and sock is self._sock:
            self._lost()

    def writable(self, sock: SimSocket) -> None:
        pass

    def _overdue(self, number: int) -> None:
        if any(number == waiting for waiting, _, _ in self._waiting):
            self._lost()

    def _lost(self) -> None:
        """Every waiting callback gets None; the next request opens another connection."""
        sock, self._sock = self._sock, None
        self._connecting = 0
        self._inbox.clear()
        self._unsent.clear()
        waiting, self._waiting = self._waiting, deque()
        if sock is not None:
            sock.close()
        for _, _, then in waiting:
            then(None)


class Client:
    """Common to all kinds: connections, and what they know about the cluster."""

    def __init__(self, world: World, network: Network, history: History, name: str, brokers: list[str]) -> None:
        self.world = world
        self.name = name
        self.history = history
        self.chance = world.chance(name)
        self._network = network
        self._bootstrap = brokers
        self._wires: dict[str, Wire] = {}
        self._leaders: dict[tuple[str, int], str] = {}
        self._epochs: dict[tuple[str, int], int] = {}
        self._asking: list[Callable[[], None]] = []
        self._topics: dict[str, None] = {}

    def wire(self, host: str) -> Wire:
        if host not in self._wires:
            self._wires[host] = Wire(self.world, self._network, self.name, host)
        return self._wires[host]

    def leader(self, topic: str, partition: int) -> Wire | None:
        host = self._leaders.get((topic, partition))
        return None if host is None else self.wire(host)

    def refresh(self, topic: str, then: Callable[[], None]) -> None:
        """Ask for the leaders; `then` runs in any case, after a pause if no broker could be asked."""
        self._topics[topic] = None
        self._asking.append(then)
        if len(self._asking) == 1:
            self._ask_metadata()

    def _ask_metadata(self) -> None:
        host = self.chance.choice(self._bootstrap)
        self.wire(host).ask(wire.METADATA, wire.metadata(list(self._topics)), self._take_metadata)

    def _take_metadata(self, body: bytes | None) -> None:
        if body is not None:
            answer = wire.read_metadata(body)
            for place, (error, leader, epoch) in answer.partitions.items():
                if error or leader not in answer.hosts or epoch < self._epochs.get(place, -1):
                    self._leaders.pop(place, None)  # metadata older than what is known is not used (KIP-320)
                else:
                    self._epochs[place] = epoch
                    self._leaders[place] = answer.hosts[leader]
        self.world.after(BACK_OFF if body is None else MS, self._tell_asking)

    def _tell_asking(self) -> None:
        asking, self._asking = self._asking, []
        for then in asking:
            then()

    def forget_leader(self, topic: str, partition: int) -> None:
        self._leaders.pop((topic, partition), None)


@dataclass(slots=True)
class Batch:
    """One operation of a producer, and its progress."""

    number: int
    values: list[str]
    begun: int
    sequence: int = -1
    sessions: dict[str, None] = field(default_factory=dict)
    attempts: int = 0
    is_uncertain: bool = False  # an attempt may have been stored although its answer never came
    is_done: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerPlan:
    """What a producer does. `gap`: maximum microseconds between two batches."""

    topic: str
    partition: int
    batches: int
    acks: int = -1
    idempotent: bool = True
    in_flight_max: int = IN_FLIGHT_MAX
    gap: int = 100 * MS
    records_max: int = 4
    value_bytes: int = 20
    patience: int = 60 * SECOND  # after which it gives up on a batch
    promise: str = "replicated"


class Producer(Client):
    """Sends batches of unique values to one partition."""

    def __init__(
        self, world: World, network: Network, history: History, name: str, brokers: list[str], plan: ProducerPlan
    ) -> None:
        super().__init__(world, network, history, name, brokers)
        self.plan = plan
        self.queue: deque[Batch] = deque()  # in the order in which they were made
        self.flying: dict[int, Batch] = {}
        self.made = 0
        self.counted = 0
        self._session = 0
        self._identity: tuple[int, int] | None = None
        self._sequence = 0
        self._is_waiting = False  # for an id, a leader, or until a retry is due
        world.after(self.chance.randint(0, plan.gap), self._make)

    @property
    def is_done(self) -> bool:
        return self.made >= self.plan.batches and not self.queue and not self.flying

    def _make(self) -> None:
        count = self.chance.randint(1, self.plan.records_max)
        values = [f"{self.name}.{self.counted + index}".ljust(self.plan.value_bytes, "-") for index in range(count)]
        batch = Batch(self.made, values, self.world.now)
        self.made += 1
        self.counted += count
        self.history.add(
            "invoke",
            client=self.name,
            op=batch.number,
            topic=self.plan.topic,
            partition=self.plan.partition,
            values=values,
            promise=self.plan.promise,
        )
        self.queue.append(batch)
        self._send()
        if self.made < self.plan.batches:
            self.world.after(self.chance.randint(0, self.plan.gap), self._make)

    def _send(self) -> None:
        """As many as may be in flight."""
        plan = self.plan
        while self.queue and len(self.flying) < plan.in_flight_max and not self._is_waiting:
            if self.world.now - self.queue[0].begun > plan.patience:
                self._give_up(self.queue.popleft())
                continue
            leader = self.leader(plan.topic, plan.partition)
            if leader is None:
                self._is_waiting = True
                self.refresh(plan.topic, self._go_on)
            elif plan.idempotent and self._identity is None:
                if self.flying:
                    return  # their numbers belong to the old id: their outcome must be known first
                self._is_waiting = True
                leader.ask(wire.INIT_PRODUCER_ID, wire.init_producer_id(), self._take_identity)
            else:
                self._send_one(self.queue.popleft(), leader)

    def _go_on(self) -> None:
        self._is_waiting = False
        self._send()

    def _take_identity(self, body: bytes | None) -> None:
        error, producer_id, epoch = (-1, -1, -1) if body is None else wire.read_init_producer_id(body)
        if error:
            self.forget_leader(self.plan.topic, self.plan.partition)
            self.world.after(BACK_OFF, self._go_on)
            return
        self._identity = producer_id, epoch
        self._sequence = 0
        self._session += 1
        for batch in self.queue:
            batch.sequence = -1
        self._go_on()

    def _send_one(self, batch: Batch, leader: Wire) -> None:
        plan = self.plan
        if plan.idempotent:
            if batch.sequence < 0:
                batch.sequence, self._sequence = self._sequence, self._sequence + len(batch.values)
            batch.sessions[str(self._session)] = None
        batch.attempts += 1
        records = [NewRecord(timestamp=START_MS + self.world.now // MS, value=value.encode()) for value in batch.values]
        producer_id, epoch = self._identity or (-1, -1)
        data = build_batch(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=batch.sequence)
        body = wire.produce(plan.topic, plan.partition, bytes(data), acks=plan.acks, timeout_ms=1_500)
        if plan.acks == 0:
            leader.tell(wire.PRODUCE, body)
            batch.is_uncertain = True
            self._end(batch, "unknown", error="acks=0")
            return
        self.flying[batch.number] = batch
        session = self._session
        leader.ask(wire.PRODUCE, body, lambda answer: self._answered(batch, session, answer))

    def _answered(self, batch: Batch, session: int, body: bytes | None) -> None:
        self.flying.pop(batch.number, None)
        result = None if body is None else wire.read_produce(body)
        if result is not None and result.error == wire.NONE:
            self._end(batch, "ok", offset=result.base_offset)
        elif result is not None and result.error in wire.REFUSED and not batch.is_uncertain:
            self._end(batch, "fail", error=wire.REFUSED[result.error])
        elif batch.is_done:
            return
        else:
            self._retry(batch, session, result)
        self._send()

    def _retry(self, batch: Batch, session: int, result: wire.ProduceResult | None) -> None:
        error = None if result is None else result.error
        if error != wire.OUT_OF_ORDER_SEQUENCE:
            batch.is_uncertain = True
        self._put_back(batch)
        is_first = self.queue[0] is batch and not any(number < batch.number for number in self.flying)
        if session == self._session and (
            error == wire.INVALID_PRODUCER_EPOCH or (error == wire.OUT_OF_ORDER_SEQUENCE and is_first)
        ):
            self._identity = None  # the broker lost what it had acknowledged, or another producer has the id: start afresh
        if error is None or error != wire.OUT_OF_ORDER_SEQUENCE:
            self.forget_leader(self.plan.topic, self.plan.partition)
        if not self._is_waiting:
            self._is_waiting = True
            self.world.after(BACK_OFF, self._go_on)

    def _put_back(self, batch: Batch) -> None:
        """After the batches that were made before it."""
        place = sum(other.number < batch.number for other in self.queue)
        self.queue.insert(place, batch)

    def _give_up(self, batch: Batch) -> None:
        """Its time is over. The batches after it have the numbers that follow, so they need new ones."""
        self._end(batch, "unknown" if batch.is_uncertain else "fail", error="gave up")
        if batch.sequence >= 0:
            self._identity = None

    def _end(self, batch: Batch, event: str, **details: object) -> None:
        batch.is_done = True
        plan = self.plan
        session = None
        if plan.idempotent and len(batch.sessions) == 1:
            session = next(iter(batch.sessions))
        elif not plan.idempotent and plan.in_flight_max == 1 and batch.attempts == 1 and plan.acks != 0:
            session = "unnumbered"
        exactly_once = plan.idempotent and len(batch.sessions) <= 1
        self.history.add(event, client=self.name, op=batch.number, exactly_once=exactly_once, session=session, **details)
        self.world.note(self.name, event, batch.number, *details.values())

    def close(self) -> None:
        """The history ends: the outcome of the rest is unknown."""
        for batch in [*self.flying.values(), *self.queue]:
            if not batch.is_done:
                self._end(batch, "unknown", error="the history ended")


class Reader(Client):
    """Asks about one partition, until it is closed."""

    def __init__(
        self, world: World, network: Network, history: History, name: str, brokers: list[str], topic: str, partition: int
    ) -> None:
        super().__init__(world, network, history, name, brokers)
        self.topic = topic
        self.partition = partition
        self.is_stopped = False

    def note(self, event: str, **details: object) -> None:
        self.history.add(event, client=self.name, topic=self.topic, partition=self.partition, **details)

    def close(self) -> None:
        self.is_stopped = True


class Consumer(Reader):
    """Reads from the start on, forever; if the position is out of range, from the log's start."""

    def __init__(self, *place: Any, bytes_max: int = 2_000) -> None:
        super().__init__(*place)
        self.position = self.start = 0
        self._bytes_max = bytes_max
        self.world.after(self.chance.randint(0, 100 * MS), self._poll)

    def _poll(self) -> None:
        if self.is_stopped:
            return
        leader = self.leader(self.topic, self.partition)
        if leader is None:
            self.refresh(self.topic, self._poll_or_rest)
            return
        body = wire.fetch(self.topic, self.partition, self.position, wait_ms=300, bytes_max=self._bytes_max)
        leader.ask(wire.FETCH, body, self._take)

    def _poll_or_rest(self) -> None:
        if self.leader(self.topic, self.partition) is None:
            self.world.after(BACK_OFF, self._poll)
        else:
            self._poll()

    def _take(self, body: bytes | None) -> None:
        result = None if body is None else wire.read_fetch(body)
        if result is not None and result.error == wire.OFFSET_OUT_OF_RANGE:
            self._ask_start()
            return
        if result is None or result.error:
            self.forget_leader(self.topic, self.partition)
            self.world.after(BACK_OFF, self._poll)
            return
        self._read(result.records)
        self.world.after(self.chance.randint(0, 5 * MS), self._poll)

    def _read(self, data: bytes) -> None:
        records: list[tuple[int, str]] = []
        place, position = 0, self.position
        while len(data) - place >= BATCH_HEADER_BYTES:
            header = read_header(memoryview(data)[place:])
            batch = data[place : place + header.size]
            if len(batch) < header.size:
                break  # the fetch limit cut this batch off; it will be fetched again
            if crc32c(memoryview(batch)[CRC_START:]) != header.crc:
                self.note("corrupt", position=position)
                return
            for record in read_records(batch):
                if record.offset >= self.position:
                    records.append((record.offset, (record.value or b"").decode()))
            position = max(position, header.next_offset)
            place += header.size
        if position > self.position:
            self.note("poll", position=self.position, records=records, next=position)
            self.world.note(self.name, "polled", self.position, position)
        self.position = position

    def _ask_start(self) -> None:
        leader = self.leader(self.topic, self.partition)
        if leader is None:
            self._poll()
        else:
            leader.ask(wire.LIST_OFFSETS, wire.list_offsets(self.topic, self.partition, -2), self._seek)

    def _seek(self, body: bytes | None) -> None:
        error, offset = (-1, -1) if body is None else wire.read_list_offsets(body)
        if not error:
            self.note("seek", position=offset)
            self.world.note(self.name, "seeks", self.position, offset)
            self.position = self.start = offset
        self.world.after(BACK_OFF, self._poll)


class Watcher(Reader):
    """Asks repeatedly where a partition ends, as a client that freezes a window does."""

    def __init__(self, *place: Any) -> None:
        super().__init__(*place)
        self.latest: int | None = None
        self.world.after(self.chance.randint(0, 200 * MS), self._ask)

    def _ask(self) -> None:
        if self.is_stopped:
            return
        leader = self.leader(self.topic, self.partition)
        if leader is None:
            self.refresh(self.topic, lambda: self.world.after(BACK_OFF, self._ask))
        else:
            leader.ask(wire.LIST_OFFSETS, wire.list_offsets(self.topic, self.partition, -1), self._take)

    def _take(self, body: bytes | None) -> None:
        error, latest = (-1, -1) if body is None else wire.read_list_offsets(body)
        if error:
            self.forget_leader(self.topic, self.partition)
        else:
            self.latest = latest
            self.note("ends", latest=latest)
        self.world.after(self.chance.randint(50 * MS, 400 * MS), self._ask)


class Admin(Client):
    """Creates topics, and deletes them."""

    def create(self, topic: str, partitions: int, replicas: int, configs: dict[str, str], then: Callable[[], None]) -> None:
        """Until it exists; TOPIC_ALREADY_EXISTS counts as success."""
        body = wire.create_topic(topic, partitions, replicas, configs)
        self._ask(wire.CREATE_TOPICS, body, wire.read_create_topic, {0, 36}, then)

    def delete(self, topic: str, then: Callable[[], None]) -> None:
        """Until it is gone; UNKNOWN_TOPIC_OR_PARTITION counts as success."""
        self._ask(wire.DELETE_TOPICS, wire.delete_topic(topic), wire.read_delete_topic, {0, 3}, then)

    def _ask(
        self, api_key: ApiKey, body: bytes, error_of: Callable[[bytes], int], done: set[int], then: Callable[[], None]
    ) -> None:
        def answered(answer: bytes | None) -> None:
            error = None if answer is None else error_of(answer)
            self.world.note(self.name, "answered", int(api_key), error)
            if error in done:
                then()
            else:
                self.world.after(2 * BACK_OFF, self._ask, api_key, body, error_of, done, then)

        self.wire(self.chance.choice(self._bootstrap)).ask(api_key, body, answered, timeout=6 * SECOND)
