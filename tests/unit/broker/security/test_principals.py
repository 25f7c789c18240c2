from __future__ import annotations

import pytest
from logbus_broker.errors import ConfigError
from logbus_broker.network.tls import PrincipalRules, name_of

BOB = ((("countryName", "DE"),), (("organizationName", "Acme"),), (("organizationalUnitName", "Data"),), (("commonName", "bob"),))


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        (BOB, "CN=bob,OU=Data,O=Acme,C=DE"),
        ((), ""),
        (((("commonName", 'a,b+c"d\\e<f>g;h'),),), 'CN=a\\,b\\+c\\"d\\\\e\\<f\\>g\\;h'),
        (((("commonName", "#a=b"),),), "CN=\\#a\\=b"),
        (((("commonName", "  two "),),), "CN=\\ \\ two\\ "),
        (((("commonName", " "),),), "CN=\\ "),
        (((("commonName", "Zoë"),),), "CN=Zoë"),
        (((("commonName", "a"), ("userId", "7")),), "CN=a+UID=7"),
        (((("domainComponent", "org"),), (("domainComponent", "example"),)), "DC=example,DC=org"),
        (((("emailAddress", "a@b.c"),),), "1.2.840.113549.1.9.1=#1605614062" + "2e63"),
    ],
)
def test_a_subject_is_written_as_java_writes_it(subject: tuple, name: str) -> None:
    assert name_of(subject) == name


@pytest.mark.parametrize(
    ("rules", "principal"),
    [
        ("", "User:CN=bob,OU=Data,O=Acme,C=DE"),
        ("DEFAULT", "User:CN=bob,OU=Data,O=Acme,C=DE"),
        ("RULE:^CN=(.*?),OU=Data.*$/$1/,DEFAULT", "User:bob"),
        ("RULE:^CN=(.*?),OU=Data.*$/$1/U", "User:BOB"),
        ("RULE:^CN=(.*?),.*$/$1@ACME/L", "User:bob@acme"),
        ("RULE:^CN=(.*?),OU=(.*?),.*$/$2-$1-$3/ , DEFAULT", "User:Data-bob-$3"),
        ("RULE:CN=bob/$0/,DEFAULT", "User:CN=bob,OU=Data,O=Acme,C=DE"),  # the whole name has to match
        (r"RULE:^CN=(\w{1,9}),.*$/a\/$1/", "User:a/bob"),
        ("RULE:^CN=alice.*$/alice/", None),
        ("RULE:^CN=(bob)(x)?.*$/$1$2/", "User:bob"),
    ],
)
def test_the_first_rule_that_matches_names_the_principal(rules: str, principal: str | None) -> None:
    assert PrincipalRules(rules).principal(BOB) == principal


@pytest.mark.parametrize("rules", ["RULE:a/b", "RULE:a/b/X", "default", "DEFAULT RULE:a/b/", "RULE:(/b/", "RULE:a,b"])
def test_what_is_not_a_rule_is_named(rules: str) -> None:
    with pytest.raises(ConfigError, match=r"ssl\.principal\.mapping\.rules"):
        PrincipalRules(rules)
