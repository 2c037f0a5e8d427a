"""The hot path has a shape that mypyc can compile: typed attributes, single inheritance, no dynamic tricks.

mypyc translates the modules into its intermediate form; nothing is compiled.
"""

from __future__ import annotations

from os import devnull
from pathlib import Path

import pytest
from mypy.fscache import FileSystemCache
from mypyc.build import get_mypy_config
from mypyc.codegen.emitmodule import compile_modules_to_ir, parse_and_typecheck
from mypyc.errors import Errors
from mypyc.irbuild.mapper import Mapper
from mypyc.options import CompilerOptions

from tests.support.source_tree import ROOT

HOT = {
    "": "purgatory waiting",
    "protocol": "chunked compiler_decode compiler_encode frames runtime wire record_batch record_scan",
    "network": "api_table charging connection gate guarded muting request request_channel request_context "
    "request_decoder request_handler request_pipeline request_queue request_recorder sliced_work",
    "apis": "fetch fetch_context guards parts produce slices",
    "replica": "append_path delayed_fetch fetch_path partition partition_reader record_checks",
    "log": "appending files indexes local_log log open_segments producer_entry producer_history producer_state segment "
    "validator",
}
"""The modules on the path of a Produce or Fetch request, by package."""


def problems(paths: list[str]) -> list[str]:
    """The errors of mypyc's front end. Its warnings, such as for generator expressions, are about speed only."""
    options = CompilerOptions()
    cache = FileSystemCache()
    flags = [
        "--config-file=",
        f"--cache-dir={devnull}",
        "--follow-imports=silent",
        "--ignore-missing-imports",
        "--explicit-package-bases",
    ]
    sources, _, mypy_options = get_mypy_config([*flags, *paths], None, options, cache)
    result = parse_and_typecheck(sources, mypy_options, options, [(sources, None)], cache)
    if result.errors:
        return result.errors
    errors = Errors(mypy_options)
    compile_modules_to_ir(result, Mapper({source.module: None for source in sources}), options, errors)
    return [line for line in errors.new_messages() if "error:" in line]


@pytest.mark.long
def test_mypyc_accepts_the_hot_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "src")
    monkeypatch.setenv("MYPYPATH", str(ROOT / "src"))
    paths = [str(Path("klamm", package, f"{name}.py")) for package, names in HOT.items() for name in names.split()]
    assert [path for path in paths if not Path(path).exists()] == []
    assert problems(paths) == []


def test_a_dynamic_class_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "dynamic_class.py"
    path.write_text("class A: pass\nclass B: pass\nclass C(A, B): pass\n")
    assert any("Multiple inheritance" in line for line in problems([str(path)]))
