"""Who a client's certificate says it is: the certificate's subject as a name (RFC 2253), and ssl.principal.mapping.rules, which
make a principal of the name. Both are written as by Kafka, so that its rules and ACLs keep their meaning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from logbus_broker.errors import ConfigError

Subject = Sequence[Sequence[tuple[str, str]]]  # as `ssl` gives it: relative names, each of pairs of a kind and a value

# Java writes these kinds with their keyword.
_KEYWORDS = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}


class _Encoded(NamedTuple):
    """A kind without a keyword: Java writes its number, and its value as the bytes of the certificate."""

    number: str
    string_tag: int  # ASN.1's: 0x16 an IA5String, 0x13 a PrintableString


# Kinds whose values have one type of string in every certificate; of others the type is not known any more.
_NUMBERS = {"emailAddress": _Encoded("1.2.840.113549.1.9.1", 0x16), "serialNumber": _Encoded("2.5.4.5", 0x13)}
_SPECIAL = re.compile(r'([,=+<>#;"\\])')


def name_of(subject: Subject) -> str:
    """The last relative name of the certificate comes first."""
    return ",".join("+".join(_attribute(kind, value) for kind, value in relative) for relative in reversed(subject))


def _attribute(kind: str, value: str) -> str:
    if kind in _NUMBERS:
        number, string_tag = _NUMBERS[kind]
        encoded = value.encode()
        length = len(encoded)
        head = bytes([length]) if length < 128 else bytes([0x81, length]) if length < 256 else b"\x82" + length.to_bytes(2, "big")
        return f"{number}=#{bytes([string_tag]).hex()}{head.hex()}{encoded.hex()}"
    escaped = _SPECIAL.sub(r"\\\1", value)
    inner = escaped.strip(" ")
    spaces = len(escaped) - len(escaped.lstrip(" ")), len(escaped) - len(escaped.rstrip(" "))
    if not inner:
        return f"{_KEYWORDS.get(kind, kind)}=" + "\\ " * len(escaped)
    return f"{_KEYWORDS.get(kind, kind)}=" + "\\ " * spaces[0] + inner + "\\ " * spaces[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class _MappingRule:
    """What the whole name must match, and what the user's name is then; without a pattern, the name as it is."""

    pattern: re.Pattern[str] | None
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        if self.pattern is None:
            return name
        match = self.pattern.fullmatch(name)
        if match is None:
            return None
        groups = (match[0], *match.groups(default=""))

        def referred(reference: re.Match[str]) -> str:
            number = int(reference[1])
            return groups[number] if number < len(groups) else reference[0]

        user = re.sub(r"\$([0-9]+)", referred, self.replacement)
        return user.lower() if self.case == "L" else user.upper() if self.case == "U" else user


# A slash inside a pattern or a replacement is written \/. A comma is no end of a rule until its last slash.
_RULE = re.compile(r"\s*(?:DEFAULT|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)")


class PrincipalRules:
    """ssl.principal.mapping.rules; the first that matches counts."""

    def __init__(self, text: str) -> None:
        self._rules = tuple(_parsed(text))

    def principal(self, subject: Subject) -> str | None:
        """`User:NAME`; None if no rule matches, and such a client has no access."""
        name = name_of(subject)
        users = (rule.apply(name) for rule in self._rules)
        return next((f"User:{user}" for user in users if user is not None), None)


def _parsed(text: str) -> Iterable[_MappingRule]:
    position, text = 0, text.strip() or "DEFAULT"
    while position < len(text):
        match = _RULE.match(text, position)
        if match is None:
            raise ConfigError(
                f"ssl.principal.mapping.rules: {text[position:]!r} is not a rule: write DEFAULT or RULE:REGEX/REPLACEMENT/, "
                "which L or U may follow, with commas between rules"
            )
        position = match.end()
        pattern, replacement, case = match.groups()
        if pattern is None:
            yield _MappingRule(pattern=None)
            continue
        try:
            yield _MappingRule(pattern=re.compile(pattern), replacement=re.sub(r"\\(.)", r"\1", replacement), case=case)
        except re.error as error:
            raise ConfigError(f"ssl.principal.mapping.rules: {pattern!r} is not a regular expression: {error}") from None
