"""JAAS configurations, as Kafka writes them in one setting: `module required option="value" ... ;`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from klamm.errors import ConfigError

_EQUALS: Final = "\0="
_END: Final = "\0;"
"""The separators, apart from equal text in quotation marks."""
_TOKEN: Final = re.compile(r"""\s*(?:("(?:[^"\\]|\\.)*")|('(?:[^'\\]|\\.)*')|([=;])|([^\s=;"']+))""")
_FLAGS: Final = frozenset({"required", "requisite", "sufficient", "optional"})
_USER_PREFIX: Final = "user_"


class JaasEntry:
    """One login module. Its options hold passwords, so they are never printed."""

    def __init__(self, module: str, options: Mapping[str, str]) -> None:
        self.module = module
        self.options = options

    @property
    def users(self) -> dict[str, str]:
        """The passwords of PLAIN users, from `user_alice="secret"`."""
        return {
            name.removeprefix(_USER_PREFIX): value
            for name, value in self.options.items()
            if name.startswith(_USER_PREFIX)
        }

    def __repr__(self) -> str:
        return f"JaasEntry({self.module})"


def parse_jaas(what: str, text: str) -> JaasEntry:
    """Parse a setting with one login module. Raises ConfigError, which names `what` and never shows the text."""
    tokens = _tokens(what, text)
    match tokens:
        case [module, flag, *rest] if flag.lower() in _FLAGS and rest and rest[-1] == _END:
            pass
        case _:
            raise ConfigError(f'{what} is malformed: expected MODULE required option="value" ... ; in one line.')
    options: dict[str, str] = {}
    pairs = rest[:-1]
    if len(pairs) % 3:
        raise ConfigError(f'{what} is malformed: an option is not of the form name="value".')
    for name, equals, value in zip(pairs[::3], pairs[1::3], pairs[2::3], strict=True):
        if equals != _EQUALS or value in (_EQUALS, _END):
            raise ConfigError(f'{what} is malformed: an option is not of the form name="value".')
        options[name] = value
    return JaasEntry(module, options)


def _tokens(what: str, text: str) -> list[str]:
    tokens: list[str] = []
    position, text = 0, text.strip()
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise ConfigError(f"{what} is malformed: a quotation mark is missing.")
        quoted = found[1] or found[2]
        tokens.append(re.sub(r"\\(.)", r"\1", quoted[1:-1]) if quoted else f"\0{found[3]}" if found[3] else found[4])
        position = found.end()
    return tokens
