"""All generated pages, by path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import klamm.apis.docs
import klamm.config.docs
from docgen import articles, cli, file_index, metrics, spark_functions, transaction_rules

ROOT: Final = Path(__file__).parents[1]
PAGES: Final[dict[str, Callable[[], str]]] = {
    "docs/reference/apis.md": klamm.apis.docs.render,
    "docs/reference/configuration.md": klamm.config.docs.render,
    "docs/reference/cli.md": cli.render,
    "docs/reference/metrics.md": metrics.render,
    "docs/reference/spark.md": lambda: spark_functions.render(ROOT / "docs/reference/spark.md"),
    "docs/reference/transaction-rules.md": transaction_rules.render,
    "docs/reference/files.md": file_index.render,
    "docs/articles.md": articles.render,
}


def render() -> dict[str, str]:
    return {path: make() for path, make in PAGES.items()}
