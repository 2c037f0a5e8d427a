"""The principal of a certificate: its distinguished name, changed by the rules of `ssl.principal.mapping.rules`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from cryptography.x509 import NameAttribute

_RULE: Final = re.compile(r"RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)")
_REFERENCE: Final = re.compile(r"\\(.)|\$(\d+)")
_SPECIAL: Final = re.compile(r'[,=+<>#;"\\]')


class _Rule(NamedTuple):
    pattern: re.Pattern[str]
    replacement: str
    case: str

    def apply(self, name: str) -> str | None:
        """Replace every match, as Kafka does once the rule matches the whole name: `(.*)` also matches its end."""
        if self.pattern.fullmatch(name) is None:
            return None
        result = self.pattern.sub(self._replaced, name)
        return result.lower() if self.case == "L" else result.upper() if self.case == "U" else result

    def _replaced(self, found: re.Match[str]) -> str:
        return _REFERENCE.sub(lambda reference: _resolve(reference, found), self.replacement)


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
    """Return the subject of a certificate as Java writes it: RFC 2253, the last attribute first. Raises ValueError.

    Kafka brokers in the same cluster must derive the same principal, so this follows Java: it escapes an equals sign
    and a number sign anywhere, and writes the value of an attribute without a name in hexadecimal.
    """
    from cryptography.x509 import InvalidVersion, load_der_x509_certificate

    try:
        subject = load_der_x509_certificate(certificate_der).subject
    except InvalidVersion as error:  # not a ValueError
        raise ValueError(str(error)) from None
    return ",".join("+".join(map(_written, rdn)) for rdn in reversed(subject.rdns))


def _written(attribute: NameAttribute[str | bytes]) -> str:
    name, value = attribute.rfc4514_attribute_name, attribute.value
    if name[0].isdigit() or isinstance(value, bytes):
        return f"{name}=#{_encoded_value(attribute).hex()}"
    text = _SPECIAL.sub(r"\\\g<0>", value).replace("\0", "\\00")
    inner = text.strip(" ")
    first = len(text) - len(text.lstrip(" "))
    last = len(text) - first - len(inner)
    return name + "=" + "\\ " * first + inner + "\\ " * last


def _encoded_value(attribute: NameAttribute[str | bytes]) -> bytes:
    """Return the value as the certificate has it, with its type: the end of a name that has only this attribute."""
    from cryptography.x509 import Name

    der = Name([attribute]).public_bytes()
    position = 0
    for _ in range(3):  # the name, the set and the pair of type and value
        position = _content(der, position)[0]
    return der[_content(der, position)[1] :]


def _content(der: bytes, position: int) -> tuple[int, int]:
    """Return where the content of the element at a position begins and ends."""
    length, start = der[position + 1], position + 2
    if length >= 0x80:
        size = length & 0x7F
        length, start = int.from_bytes(der[start : start + size], "big"), start + size
    return start, start + length
