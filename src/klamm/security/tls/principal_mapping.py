"""The principal of a certificate: its distinguished name, changed by the rules of `ssl.principal.mapping.rules`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

_RULE: Final = re.compile(r"RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)")
_REFERENCE: Final = re.compile(r"\\(.)|\$(\d+)")


class _Rule(NamedTuple):
    pattern: re.Pattern[str]
    replacement: str
    case: str

    def apply(self, name: str) -> str | None:
        found = self.pattern.fullmatch(name)
        if found is None:
            return None
        result = _REFERENCE.sub(lambda reference: _resolve(reference, found), self.replacement)
        return result.lower() if self.case == "L" else result.upper() if self.case == "U" else result


def _resolve(reference: re.Match[str], found: re.Match[str]) -> str:
    """Return the text of a group. A number that is too large keeps its last digits as text, as in Kafka."""
    if reference[1] is not None:
        return reference[1]
    digits = reference[2]
    groups = found.re.groups
    for length in range(len(digits), 0, -1):
        if int(digits[:length]) <= groups and (length == 1 or digits[0] != "0"):
            return (found[int(digits[:length])] or "") + digits[length:]
    return reference[0]


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern.replace("\\/", "/"))
    except re.error as error:
        raise ValueError(f"a pattern that is valid, but {pattern!r} is not: {error}") from None


class PrincipalMapper:
    """Applies the first rule that matches. `DEFAULT` is the name itself."""

    def __init__(self, rules: tuple[Callable[[str], str | None], ...]) -> None:
        self._rules = rules

    @classmethod
    def parse(cls, text: str) -> PrincipalMapper:
        """Parse `RULE:pattern/replacement/[LU],...,DEFAULT`. Raises ValueError."""
        rules: list[Callable[[str], str | None]] = []
        position, text = 0, text.strip()
        while position < len(text):
            if text.startswith("DEFAULT", position):
                rules.append(str)
                position += len("DEFAULT")
            elif (found := _RULE.match(text, position)) is not None:
                rules.append(_Rule(_compiled(found[1]), found[2], found[3]).apply)
                position = found.end()
            else:
                raise ValueError(f"rules RULE:pattern/replacement/[LU] or DEFAULT, but {text[position:]!r} is not one")
            rest = text[position:].lstrip()
            if rest and not rest.startswith(","):
                raise ValueError(f"a comma between two rules, not {rest!r}")
            position = len(text) - len(rest.removeprefix(",").lstrip())
        return cls(tuple(rules) or (str,))

    def name_of(self, distinguished_name: str) -> str | None:
        """Return the name of the principal; None if no rule matches."""
        for rule in self._rules:
            if (name := rule(distinguished_name)) is not None:
                return name
        return None


def distinguished_name(certificate_der: bytes) -> str:
    """Return the subject of a certificate as Java writes it: RFC 2253, the last attribute first. Raises ValueError."""
    from cryptography.x509 import InvalidVersion, load_der_x509_certificate

    try:
        return load_der_x509_certificate(certificate_der).subject.rfc4514_string()
    except InvalidVersion as error:  # not a ValueError
        raise ValueError(str(error)) from None
