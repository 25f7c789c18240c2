"""Stories: what producers, brokers, clocks, operators and bad luck do to one pipeline, drawn from a seed.

A story is data, so it can be printed, replayed and shortened. Its steps name things by shares (0.7 of the windows that then
exist), so that a story with steps removed still makes sense. Kinds in `FAULTS` are those after which something may be wrong.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any


@dataclass(frozen=True)
class Step:
    """`kind` is the name of a method of the player, or of `ByHand`."""

    kind: str
    arguments: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(f'{name}={as_text(value)}' for name, value in self.arguments.items())})"


def as_text(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(as_text, value))}]"
    return f"{value:.2f}" if isinstance(value, float) else str(value) if isinstance(value, Step) else repr(value)


@dataclass(frozen=True, kw_only=True)
class Story:
    """A pipeline and what happens to it."""

    seed: int
    sink: str
    partitions: int
    parse: str
    gaps: bool
    length: timedelta  # of a window
    steps: tuple[Step, ...]
    faults: tuple[str, ...]

    def __str__(self) -> str:
        head = f"seed {self.seed}: {self.sink}, {self.partitions} partitions, parse {self.parse}, offset_gaps {self.gaps}, every {self.length}"
        return "\n".join([f"{head}, faults: {', '.join(self.faults) or 'none'}", *(f"  {step}" for step in self.steps)])


Draw = Callable[[random.Random], list[Step]]

LATE_OR_EARLY = [35, 55, 70, 75, -10, -45, "2099", None]


def produce(rng: random.Random, count_max: int = 4) -> Step:
    """Minutes ago, in order, and occasionally an odd timestamp; the kind of each value: JSON, text, not text."""
    minutes: list[Any] = sorted((rng.randint(0, 40) for _ in range(rng.randint(1, count_max))), reverse=True)
    if rng.random() < 0.3:
        minutes.insert(rng.randint(0, len(minutes)), rng.choice(LATE_OR_EARLY))
    kinds = [rng.choice(["json"] * 6 + ["text"] * 3 + ["bytes"]) for _ in minutes]
    return Step("produce", {"partition": rng.random(), "minutes": minutes, "kinds": kinds})


def some(rng: random.Random) -> list[float]:
    """One to three of the existing windows, with a preference for the newer ones."""
    return [1 - rng.random() ** 1.5 for _ in range(rng.choice([1, 1, 2, 3]))]


def load(rng: random.Random, **disturbance: Any) -> Step:
    return Step("load", {"places": some(rng), **disturbance})


def meanwhile(rng: random.Random, *steps: Step) -> dict[str, Any]:
    """Steps that run before the n-th transaction of a load."""
    return {"at": rng.randint(0, 14), "steps": list(steps)}


# What an ordinary day includes: none of it may raise an alarm.
ORDINARY: dict[str, tuple[int, Draw]] = {
    "freeze": (3, lambda rng: [Step("freeze", {"places": some(rng)})]),
    "backlog": (1, lambda rng: [Step("freeze_backlog"), load(rng)]),
    "load": (6, lambda rng: [Step("freeze", {"places": some(rng)}), load(rng)]),
    "repeated_task": (1, lambda rng: [load(rng, repeats=True)]),
    "audit": (2, lambda rng: [Step("audit", {"place": rng.random()})]),
    "late": (1, lambda rng: [Step("freeze", {"places": some(rng)}), produce(rng), load(rng)]),
    "two_loaders": (2, lambda rng: [Step("begin", {"places": some(rng)}), load(rng), Step("drive", {})]),
    "overtaken": (2, lambda rng: [load(rng, **meanwhile(rng, load(rng)))]),
    "killed": (1, lambda rng: [load(rng, kill=rng.randint(0, 14))]),
    "appended": (1, lambda rng: [load(rng, **meanwhile(rng, produce(rng), Step("freeze", {"places": some(rng)})))]),
    "quiet_then_late": (
        1,
        lambda rng: [
            Step("pass_time", {"hours": 3.0}),
            Step("freeze", {"places": [1.0]}),
            Step("produce", {"partition": rng.random(), "minutes": [190, 110], "kinds": ["json", "text"]}),
            Step("freeze", {"places": [0.7, 0.6, 0.5]}),
        ],
    ),
    "reparse": (1, lambda rng: [Step("reparse"), load(rng)]),
    "changed_between": (1, lambda rng: [Step("begin", {"places": some(rng)}), Step("reparse"), Step("drive", {})]),
    "redrive": (1, lambda rng: [Step("reparse"), Step("redrive")]),
    "register_again": (1, lambda rng: [Step("register_again")]),
    "add_partition": (1, lambda rng: [Step("add_partition")]),
    "retention": (1, lambda rng: [Step("retention", {"partition": rng.random(), "share": rng.random()})]),
    "upkeep": (1, lambda rng: [Step("upkeep")]),
}

UNUSABLE_HEAD = "unusable_head"  # a log that begins with records whose timestamps are unusable


def table_fault(kind: str) -> Draw:
    return lambda rng: [Step(kind, {"place": rng.random(), "other": rng.random()})]


# What must be named or refused. Each comes with the steps that make it take effect.
FAULTS: dict[str, Draw] = {
    "restored": lambda rng: [Step("restored", {"share": rng.random(), "regrow": rng.randint(0, 12)})],
    "election": lambda rng: [
        Step("election", {"partition": rng.random(), "count": rng.randint(1, 6), "regrow": rng.randint(0, 9)})
    ],
    "shortened": lambda rng: [
        Step("election", {"partition": rng.random(), "count": rng.randint(4, 7), "regrow": 0}),
        produce(rng),
        Step("pass_time", {"hours": 1.0}),
    ],
    "restored_under_a_load": lambda rng: [
        Step("freeze", {"places": some(rng)}),
        load(rng, **meanwhile(rng, Step("restored", {"share": rng.random(), "regrow": rng.randint(4, 12)}))),
    ],
    "made_again": lambda rng: [Step("made_again", {"partitions": rng.randint(1, 2), "regrow": rng.randint(0, 9)})],
    "made_again_and_rebased": lambda rng: [
        Step("made_again", {"partitions": rng.randint(1, 2), "regrow": rng.randint(0, 9)}),
        Step("rebase"),
    ],
    "made_again_without_an_id": lambda rng: [Step("restored", {"share": 0.0, "regrow": rng.randint(0, 14)})],
    "compacted": lambda rng: [Step("compacted", {"partition": rng.random(), "share": rng.random()}), load(rng)],
    "greedy_retention": lambda rng: [Step("greedy_retention", {"partition": rng.random(), "share": rng.random()})],
    "hanging": lambda rng: [
        Step("hanging", {"partition": rng.random()}),
        produce(rng),
        Step("pass_time", {"hours": 1.0}),
        Step("freeze", {"places": some(rng)}),
        Step("end_transactions"),
    ],
    "row_changed": table_fault("row_changed"),
    "row_deleted": table_fault("row_deleted"),
    "row_doubled": table_fault("row_doubled"),
    "row_swapped": table_fault("row_swapped"),
    "row_moved": table_fault("row_moved"),
    "dead_letter_deleted": table_fault("dead_letter_deleted"),
    "dead_letter_changed": table_fault("dead_letter_changed"),
    "ledger_restored": lambda rng: [
        Step("save_ledger"),
        Step("freeze", {"places": some(rng)}),
        load(rng),
        Step("restore_ledger"),
    ],
    "ledger_restored_under_a_load": lambda rng: [
        Step("save_ledger"),
        Step("begin", {"places": some(rng)}),
        Step("restore_ledger"),
        Step("reparse"),
        load(rng),
        Step("drive", {}),
    ],
    "ledger_restored_within_a_load": lambda rng: [
        Step("save_ledger"),
        load(rng, **meanwhile(rng, Step("restore_ledger"), Step("reparse"), Step("begin", {"places": some(rng)}))),
        Step("drive", {}),
    ],
    "alias": lambda rng: [Step("alias", {"own_topic": rng.random() < 0.5, "swaps": rng.random() < 0.5})],
    "reader_skips": lambda rng: [load(rng, reader="skips")],
    "reader_doubles": lambda rng: [load(rng, reader="doubles")],
}

FILE_FAULTS: dict[str, Draw] = {
    "sink_moved": lambda rng: [Step("sink_moved"), load(rng)],
    "file_removed": table_fault("file_removed"),
    "file_of_another": table_fault("file_of_another"),
}

# What only a table in PostgreSQL has, or files do not allow.
TABLE_ONLY = ("row_moved", "row_swapped", "alias", "redrive")

# What a broker does not do on command.
MEMORY_ONLY = ("election", "shortened", "compacted", "hanging", "made_again_without_an_id", "reader_skips", "reader_doubles")

# The first is detected only in a topic without gaps, because gaps would hide it. The others need gaps.
NOT_WITH_GAPS = ("reader_skips",)
ONLY_WITH_GAPS = ("compacted", "hanging", "shortened")


LENGTHS = [timedelta(minutes=minutes) for minutes in (60, 60, 60, 30, 20)]


def draw(seed: int, wanted: str | None = None, *, on_a_broker: bool = False) -> Story:
    """The story of a seed. `wanted`: a fault, or an element of an ordinary day, that it must contain."""
    rng = random.Random(seed)
    fault = None if wanted in ORDINARY or wanted == UNUSABLE_HEAD else wanted
    sink = "iceberg" if (fault in FILE_FAULTS or rng.random() < 0.15) and fault not in TABLE_ONLY else "postgres"
    gaps = fault in ONLY_WITH_GAPS or (rng.random() < 0.2 and fault not in NOT_WITH_GAPS)
    unfit = {*(NOT_WITH_GAPS if gaps else ONLY_WITH_GAPS), *(TABLE_ONLY if sink != "postgres" else FILE_FAULTS)}
    if on_a_broker:
        unfit.update(MEMORY_ONLY)
    faults = draw_faults(rng, sorted({*FAULTS, *FILE_FAULTS} - unfit)) if wanted is None else [fault] if fault else []
    return Story(
        seed=seed,
        sink=sink,
        partitions=rng.choice([1, 1, 2]),
        parse=rng.choice(["lines", "lines", "json"]),
        gaps=gaps,
        length=random.Random(f"length {seed}").choice(LENGTHS),
        steps=tuple(without_2099(step) if on_a_broker else step for step in draw_steps(rng, sink, faults, wanted)),
        faults=tuple(faults),
    )


def draw_faults(rng: random.Random, fit: Sequence[str]) -> list[str]:
    if rng.random() < 0.35:
        return []
    chosen = rng.sample(fit, 2 if rng.random() < 0.2 else 1)
    return [one for one in chosen if one != "compacted" or len(chosen) == 1]  # compaction may have removed the evidence


def without_2099(step: Step) -> Step:
    """A broker rejects such a timestamp, and the client used here cannot send a record without one."""
    changed = dict(step.arguments)
    if "minutes" in changed:
        changed["minutes"] = [minutes if isinstance(minutes, int) else 0 for minutes in changed["minutes"]]
    if "steps" in changed:
        changed["steps"] = [without_2099(inner) for inner in changed["steps"]]
    return Step(step.kind, changed)


def draw_steps(rng: random.Random, sink: str, faults: Sequence[str], wanted: str | None) -> list[Step]:
    """Hours in which records arrive; then loads and the rest of the day; the faults in between, once something is loaded."""
    steps: list[Step] = []
    if wanted == UNUSABLE_HEAD or rng.random() < 0.1:
        steps.append(Step("produce", {"partition": 0.0, "minutes": ["2099", None], "kinds": ["json", "text"]}))
    for _ in range(rng.choice([1, 1, 2, 2, 3])):
        steps += [produce(rng) for _ in range(rng.randint(1, 2))]
        steps.append(Step("pass_time", {"hours": rng.choice([0.5, 1.0, 1.0])}))
    if any(name.startswith("restored") for name in faults):
        steps.append(Step("back_up"))
    steps += [Step("freeze", {"places": some(rng)}), load(rng)]
    if rng.random() < 0.5:
        steps += [produce(rng), Step("pass_time", {"hours": 1.0})]
    pieces = [ordinary(rng, sink) for _ in range(rng.randint(1, 3))]
    if wanted in ORDINARY:
        pieces.append(ORDINARY[wanted][1](rng))
    for name in faults:
        pieces.insert(rng.randint(0, len(pieces)), {**FAULTS, **FILE_FAULTS}[name](rng))
    for piece in pieces:
        steps += piece
        if rng.random() < 0.3:
            steps += [produce(rng), Step("pass_time", {"hours": rng.choice([0.5, 1.0])})]
    return steps


def ordinary(rng: random.Random, sink: str) -> list[Step]:
    names = [name for name in ORDINARY if sink == "postgres" or name not in TABLE_ONLY]
    (name,) = rng.choices(names, [ORDINARY[one][0] for one in names])
    return ORDINARY[name][1](rng)
