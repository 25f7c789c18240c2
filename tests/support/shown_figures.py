"""What a page shows against what it should: a table of figures, each with its place on the page and where its value comes from.

An expected text is put together here and formatted by the page's own format.js, which has tests of its own. A figure that moves with
the clock must be what it was at some second of the look. And nothing on a page may show a digit or a dash without a figure of the
table that stands for it: `unaccounted` finds what does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from playwright.sync_api import Page

SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Said:
    """A call of one of format.js's functions, or of another module's; of a list of lists one by its number, its words joined."""

    function: str
    arguments: tuple[Any, ...]
    module: str = "format"
    number: int | None = None


@dataclass(frozen=True, slots=True)
class Either:
    """One of these texts: both are right."""

    texts: tuple[Text, ...]


Text = str | Said | Either | tuple["Text", ...]


def said(function: str, *arguments: Any) -> Said:
    return Said(function, tuple(instant(one) if isinstance(one, datetime) else one for one in arguments))


def many(count: int, one: str) -> Said:
    return said("many", count, one)


def instant(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """`place` is a CSS selector of one or more elements, whose text (or `attribute`) `expected` gives in the page's order.

    `source` says what the expected value is read from: never from the page's own data.
    """

    name: str
    place: str
    source: str
    expected: Callable[[Any], Sequence[Text]]
    attribute: str | None = None


READ = """places => places.map(([place, attribute]) => [...document.querySelectorAll(place)].map(one =>
    (attribute ? one.getAttribute(attribute) : one.textContent).replace(/\\s+/g, ' ').trim()))"""

FORMAT = """async calls => {
    const modules = {};
    for (const [module] of calls) modules[module] ??= await import(`../static/${module}.js`);
    return calls.map(([module, name, values]) => modules[module][name](...values));
}"""

# Texts with a digit, a dash that stands for what nobody knows, or such words, that belong to none of the places.
UNACCOUNTED = """places => {
    const known = places.filter(([, attribute]) => !attribute).map(([place]) => place).join(', ');
    const found = [];
    const isFigure = text => /[0-9\u2013]|not known/.test(text);
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const [text, parent] = [walker.currentNode.data, walker.currentNode.parentElement];
        if (isFigure(text) && !parent.closest(`script, style, dialog, #fresh, ${known}`)) found.push(`${parent.outerHTML}`);
    }
    for (const name of ['title', 'aria-label']) {
        const covered = places.filter(([, attribute]) => attribute === name).map(([place]) => place).join(', ');
        for (const one of document.body.querySelectorAll(`[${name}]`))
            if (isFigure(one.getAttribute(name)) && !(covered && one.matches(covered))) found.push(`${name}: ${one.getAttribute(name)}`);
    }
    return found;
}"""


def wrong_figures(page: Page, figures: Sequence[Figure], views: Sequence[Any]) -> dict[str, Any]:
    """By name what is shown and what should be, of the figures that are none of what `views` (one for each second) expect."""
    shown = page.evaluate(READ, [[one.place, one.attribute] for one in figures])
    expected = {one.name: different(one.expected(view) for view in views) for one in figures}
    format_of = formatter(page, (text for lists in expected.values() for texts in lists for text in texts))
    found = {}
    for figure, texts in zip(figures, shown, strict=True):
        choices = [[format_of(text) for text in one] for one in expected[figure.name]]
        if not any(len(choice) == len(texts) for choice in choices) or not all(
            any(index < len(choice) and text in choice[index] for choice in choices) for index, text in enumerate(texts)
        ):
            found[figure.name] = {"shown": texts, "expected": [sorted(one) for one in choices[-1]]}
    return found


def different(lists: Iterable[Sequence[Text]]) -> list[Sequence[Text]]:
    """Without those that are as the one before: most figures stand still."""
    found: list[Sequence[Text]] = []
    for one in lists:
        if not found or one != found[-1]:
            found.append(one)
    return found


def unaccounted(page: Page, figures: Sequence[Figure]) -> list[str]:
    """What is shown beside the figures and looks like one."""
    found: list[str] = page.evaluate(UNACCOUNTED, [[one.place, one.attribute] for one in figures])
    return found


def formatter(page: Page, texts: Iterable[Text]) -> Callable[[Text], set[str]]:
    """What a text reads like on the page, in each of the ways that are right. All calls go to the page at once."""
    calls = list({repr(call): call for text in texts for call in calls_of(text)}.values())
    answers = page.evaluate(FORMAT, [[call.module, call.function, list(call.arguments)] for call in calls])
    known: Mapping[str, Any] = {repr(call): answer for call, answer in zip(calls, answers, strict=True)}

    def format_of(text: Text) -> set[str]:
        return {" ".join(one.split()) for one in joined(text, known)}

    return format_of


def calls_of(text: Text) -> Iterator[Said]:
    if isinstance(text, Said):
        yield text
    elif not isinstance(text, str):
        for part in text.texts if isinstance(text, Either) else text:
            yield from calls_of(part)


def joined(text: Text, known: Mapping[str, Any]) -> set[str]:
    if isinstance(text, str):
        return {text}
    if isinstance(text, Said):
        answer = known[repr(text)]
        return {str(answer) if text.number is None else " ".join(answer[text.number])}
    if isinstance(text, Either):
        return set().union(*(joined(one, known) for one in text.texts))
    found = {""}
    for part in text:
        found = {before + one for before in found for one in joined(part, known)}
    return found


def seconds(since: datetime, until: datetime) -> list[datetime]:
    """Each second of a look, its ends included."""
    count = int((until - since) / SECOND) + 2
    return [since + number * SECOND for number in range(count)]
