"""`python -m docgen` writes every generated page. `make docs` calls it; tests/unit/docs checks the pages."""

from __future__ import annotations

from docgen.pages import ROOT, render

if __name__ == "__main__":
    for path, text in render().items():
        (ROOT / path).write_text(text)
        print(path)
