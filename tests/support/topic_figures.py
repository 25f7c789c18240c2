"""What the page of topics and groups must show, every row open: `FIGURES` has every figure of it, its place on the page and where the
expected value comes from."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.platform_facts import Facts, Group, Partition
from tests.support.shown_figures import Either, Figure, Text, said

UNKNOWN = "\u2013"
NO_RATE = Either((UNKNOWN, said("rate", 0)))  # nobody produces here; the first look knows no rate yet
TOPICS = "table[aria-label=Topics]"
GROUPS = "table[aria-label=Groups]"


@dataclass(frozen=True, slots=True)
class View:
    """What the page must show, with every row open."""

    facts: Facts
    has_warehouse: bool = True

    @property
    def topics(self) -> list[str]:
        return sorted(self.facts.topics)

    @property
    def groups(self) -> list[tuple[str, Group]]:
        """The one furthest behind first; those of whom nobody knows last."""
        lags = {name: lag(self.facts, group) for name, group in self.facts.groups.items()}
        found = sorted(self.facts.groups.items(), key=lambda one: one[0])
        return sorted(found, key=lambda one: (lags[one[0]] is None, -(lags[one[0]] or 0)))

    def partitions(self, topic: str) -> list[tuple[int, Partition]]:
        return sorted(self.facts.topics[topic].items())


def lag_at(facts: Facts, group: Group, place: tuple[str, int]) -> int | None:
    topic, partition = place
    return facts.topics[topic][partition].end - group.committed[place] if place in group.committed else None


def lag(facts: Facts, group: Group) -> int | None:
    found = [one for one in (lag_at(facts, group, place) for place in places(group)) if one is not None]
    return sum(found) if found else None


def places(group: Group) -> list[tuple[str, int]]:
    """What it has committed or reads."""
    return sorted({*group.committed, *(place for member in group.members for place in member.places)})


def totals(view: View) -> list[Text]:
    parts = [one for topic in view.topics for _, one in view.partitions(topic)]
    return [
        said("many", len(view.topics), "topic"),
        (said("short", sum(one.end - one.start for one in parts)), " records"),
        said("bytes", sum(one.size_bytes for one in parts)),
        (NO_RATE, " coming in"),
        said("many", len(view.groups), "group"),
    ]


def topic_cells(view: View) -> list[Text]:
    found: list[Text] = []
    for topic in view.topics:
        parts = [one for _, one in view.partitions(topic)]
        pipelines = [row["name"] for row in view.facts.tables["pipeline"] if row["topic"] == topic]
        found += [
            topic,
            said("whole", len(parts)),
            said("short", sum(one.end - one.start for one in parts)),
            said("bytes", sum(one.size_bytes for one in parts)),
            NO_RATE,
            kept(view, topic),
            said("whole", max(one.replicas for one in parts)),
            ", ".join(sorted(pipelines)) or UNKNOWN,
        ]
    return found


def kept(view: View, topic: str) -> Text:
    if any(row["topic"] == topic for row in view.facts.tables["retention_policy"]):
        return "managed"
    age, size = (int(view.facts.settings[topic][name]) for name in ("retention.ms", "retention.bytes"))
    limits: list[Text] = ([said("span", age / 1000)] if age > 0 else []) + ([said("bytes", size)] if size > 0 else [])
    forever = "for ever" if view.has_warehouse else UNKNOWN
    return (limits[0], ", ", limits[1]) if len(limits) == 2 else limits[0] if limits else forever


def partition_cells(view: View) -> list[Text]:
    found: list[Text] = []
    for topic in view.topics:
        for number, one in view.partitions(topic):
            offsets = [said("whole", value) for value in (one.start, one.end, one.end - one.start)]
            found += [str(number), str(one.leader), *offsets, said("bytes", one.size_bytes)]
    return found


def group_cells(view: View) -> list[Text]:
    found: list[Text] = []
    for name, group in view.groups:
        behind = lag(view.facts, group)
        found += [
            *(name, group.state, said("whole", len(group.members)), "no offsets" if behind is None else said("whole", behind)),
            *(said("whole", len(places(group))), group.assignor or UNKNOWN),
        ]
    return found


def group_details(view: View) -> list[Text]:
    """Its members, then its offsets."""
    found: list[Text] = []
    for _, group in view.groups:
        for member in group.members:
            known = [one for one in (lag_at(view.facts, group, place) for place in member.places) if one is not None]
            assigned = ", ".join(f"{topic}-{number}" for topic, number in member.places) or "nothing assigned"
            found += [member.client_id, member.host, assigned, said("whole", sum(known) if known else None)]
        for place in places(group):
            topic, number = place
            end, readers = view.facts.topics[topic][number].end, [one.member_id for one in group.members if place in one.places]
            offsets = [said("whole", value) for value in (group.committed.get(place), end, lag_at(view.facts, group, place))]
            found += [f"{topic}-{number}", *offsets, readers[0] if readers else "nobody"]
    return found


OFFSETS, DISK = "the stock client's ListOffsets", "the segments on the disk"
MEMBERS = "the stock client's description and committed offsets of the groups; ListOffsets"

FIGURES = (
    Figure(name="totals", place=".totals span", source=f"{OFFSETS}; {DISK}", expected=totals),
    Figure(
        name="topics",
        place=f"{TOPICS} tr.one td",
        source=f"{OFFSETS}, DescribeConfigs, Metadata; {DISK}; the ledger's pipelines and policies",
        expected=topic_cells,
    ),
    Figure(name="partitions", place=f"{TOPICS} tr.inner td td", source=f"{OFFSETS}, Metadata; {DISK}", expected=partition_cells),
    Figure(name="groups", place=f"{GROUPS} tr.one td", source=MEMBERS, expected=group_cells),
    Figure(name="members and offsets", place=f"{GROUPS} tr.inner td td", source=MEMBERS, expected=group_details),
)
