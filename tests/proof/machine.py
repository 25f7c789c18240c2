"""The proof machine: plays the stories of seeds, records each outcome, and shortens those in which a claim was false."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from tests.proof.bench import Bench
from tests.proof.checker import Violation
from tests.proof.logs import Log, MemoryLog
from tests.proof.player import Player
from tests.proof.story import Step, Story, draw

# A failing story is shortened step by step; each try costs as much as the story itself.
TRIES_MAX = 150


@dataclass(frozen=True, kw_only=True)
class Played:
    """The outcome of a story: exact throughout, or something was refused, or named; or a violation."""

    story: Story
    counts: Counter[str]
    violation: str | None = None
    kind: str | None = None

    @property
    def verdict(self) -> str:
        if self.violation:
            return "violated"
        return next((word for word in ("named", "refused") if self.counts[word]), "exact")


def play(bench: Bench, story: Story, log: Log | None = None) -> Played:
    player = Player(bench, story, log or MemoryLog())
    try:
        player.play(story.steps)
        player.settle()
    except Violation as violation:
        return Played(story=story, counts=player.truth.counts, violation=str(violation), kind=violation.kind)
    except Exception as error:  # anything the product does not raise on purpose
        last = "".join(traceback.format_exception(error)[-8:])
        return Played(story=story, counts=player.truth.counts, violation=f"crash: {last}", kind=f"crash {type(error).__name__}")
    return Played(story=story, counts=player.truth.counts)


def shorten(bench: Bench, played: Played, log: Log | None = None) -> Played:
    """The story without steps it does not need: any step is dropped if the same kind of violation still occurs."""
    tries, index = 0, len(played.story.steps) - 1
    while index >= 0 and tries < TRIES_MAX:
        for shorter in without(played.story.steps, index):
            tries += 1
            again = play(bench, replace(played.story, steps=shorter), log)
            if again.kind == played.kind:
                played = again
                break
        index = min(index, len(played.story.steps)) - 1
    return played


def without(steps: tuple[Step, ...], index: int) -> Iterable[tuple[Step, ...]]:
    """The steps without this one; or with its inner steps in its place; or with less of it."""
    before, step, after = steps[:index], steps[index], steps[index + 1 :]
    yield (*before, *after)
    inner = step.arguments.get("steps")
    if inner:
        yield (*before, *inner, *after)
    for name in ("places", "minutes"):
        many = step.arguments.get(name)
        if many and len(many) > 1:
            rest = {name: many[:-1], **({"kinds": step.arguments["kinds"][:-1]} if name == "minutes" else {})}
            yield (*before, Step(step.kind, {**step.arguments, **rest}), *after)


@dataclass
class Summary:
    """The outcomes of many stories."""

    stories: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    by_fault: dict[str, Counter[str]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[Played] = field(default_factory=list)

    def add(self, played: Played) -> None:
        self.stories += 1
        self.verdicts[played.verdict] += 1
        self.counts.update(played.counts)
        for fault in played.story.faults or ("none",):
            self.by_fault.setdefault(fault, Counter())[played.verdict] += 1
        if played.violation:
            self.failures.append(played)

    def __str__(self) -> str:
        words = ("exact", "refused", "named", "violated")
        rows = [("fault", "histories", *words)]
        for fault, found in sorted(self.by_fault.items()):
            rows.append((fault, str(found.total()), *(str(found[word]) for word in words)))
        rows.append(("all", str(self.stories), *(str(self.verdicts[word]) for word in words)))
        lines = [f"{row[0]:30}" + "".join(f"{cell:>11}" for cell in row[1:]) for row in rows]
        done = ", ".join(f"{count} {what}" for what, count in sorted(self.counts.items()))
        return "\n".join([*lines, f"in them: {done}"])


def run(
    bench: Bench,
    seeds: Iterable[int],
    *,
    fault: str | None = None,
    log: Log | None = None,
    failures_max: int = 1,
    tell: Callable[[str], None] = print,
) -> Summary:
    """Plays the seeds' stories, and prints those that fail, shortened, until there are `failures_max` of them."""
    summary = Summary()
    for seed in seeds:
        played = play(bench, draw(seed, fault, on_a_broker=log is not None), log)
        summary.add(played)
        if played.violation:
            tell(story_of(shorten(bench, played, log)))
            if len(summary.failures) >= failures_max:
                break
    return summary


def story_of(played: Played) -> str:
    return f"{played.story}\n  => {played.violation}\n  play it again: make proof SEED={played.story.seed}"
