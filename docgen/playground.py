"""Puts the browser edition of the viewer into a built web site: `python -m docgen.playground SITE PYODIDE`.

The page runs klamm's controller and simulator under Pyodide, so the site contains the modules that they import, as an
archive, and Pyodide itself. Nothing is loaded from another host.
"""

from __future__ import annotations

import logging
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).parents[1] / "src"
STATIC: Final = SOURCE / "klamm" / "dashboard" / "static"
FOLDER: Final = "playground"
PYODIDE_FILES: Final = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
_TIME: Final = (1980, 1, 1, 0, 0, 0)
"""Of every file in the archive, so that the same source gives the same bytes."""


def modules() -> list[Path]:
    """Return the files that the browser edition imports, found by running it once."""
    from klamm.sim.scenarios import places, scenarios
    from klamm.sim.scripted import play

    scenarios()
    places("start")
    play('{"seed": 7, "chaos": true}')
    files = [module.__file__ for name, module in sys.modules.items() if name.split(".")[0] == "klamm"]
    return sorted(Path(file) for file in files if file is not None)


def write_archive(target: Path) -> None:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in modules():
            name = str(path.relative_to(SOURCE))
            info = zipfile.ZipInfo(name, _TIME)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, path.read_bytes())


def build(site: Path, pyodide: Path) -> Path:
    """Write the folder of the browser edition; returns it."""
    folder = site / FOLDER
    (folder / "pyodide").mkdir(parents=True, exist_ok=True)
    for path in sorted(STATIC.iterdir()):
        if path.name not in ("index.html", "live.js"):
            shutil.copyfile(path, folder / ("index.html" if path.name == "playground.html" else path.name))
    for name in PYODIDE_FILES:
        shutil.copyfile(pyodide / name, folder / "pyodide" / name)
    write_archive(folder / "klamm.zip")
    return folder


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)  # The run that finds the modules has brokers that fail.
    build(Path(sys.argv[1]), Path(sys.argv[2]))
