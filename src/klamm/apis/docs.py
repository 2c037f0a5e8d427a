"""docs/apis.md, written from the declarations: `python -m klamm.apis.docs docs/apis.md`."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

from klamm.apis import ALL
from klamm.apis.registry import Api

_HEAD = """\
# The APIs klamm serves

Written by `python -m klamm.apis.docs docs/apis.md` from the declarations in `src/klamm/apis/`; do not edit it by hand.
A request of an API or a version that is not in this table is answered with UNSUPPORTED_VERSION (35) or by closing the
connection, as Kafka does, and is not advertised.

| key | API | versions | flexible from | plane |
|---:|---|---|---|---|
"""


def render() -> str:
    apis = sorted(ALL, key=lambda api: api.key)
    return _HEAD + "".join(map(_row, apis)) + "".join(map(_section, apis))


def _row(api: Api[Any, Any]) -> str:
    low, high = api.versions
    flexible = f"v{api.request.FLEXIBLE}" if high >= api.request.FLEXIBLE else "-"
    return f"| {api.key} | [{api.name}](#{api.name.lower()}) | {low}-{high} | {flexible} | {api.plane.value} |\n"


def _section(api: Api[Any, Any]) -> str:
    module = inspect.getmodule(api.handle)
    text = inspect.cleandoc(module.__doc__ or "") if module is not None else ""
    return f"\n## {api.name}\n\n{text}\n"


def main(arguments: list[str]) -> None:
    text = render()
    if arguments:
        Path(arguments[0]).write_text(text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main(sys.argv[1:])
