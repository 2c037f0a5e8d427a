"""A pipeline from a file: YAML by `.yaml` and `.yml`, Python by `.py`."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from klamm.errors import KlammError
from klamm.spark.pipeline.builder import Pipeline
from klamm.spark.pipeline.pipeline_model import PipelineSpec
from klamm.spark.pipeline.pipeline_problems import PipelineError, Problem
from klamm.spark.pipeline.yaml_file import read_yaml


def load(path: Path | str, environment: Mapping[str, str] = os.environ) -> PipelineSpec:
    """Return the checked pipeline. Relative paths in it refer to the working directory."""
    path = Path(path)
    if path.suffix in (".yaml", ".yml"):
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise PipelineError(str(path), [Problem(1, "not a text in UTF-8.")]) from None
        return read_yaml(text, str(path), environment)
    if path.suffix == ".py":
        return _from_python(path)
    raise KlammError(f"{path}: a pipeline is a .yaml, .yml or .py file.")


def _from_python(path: Path) -> PipelineSpec:
    found = {id(value): value for value in vars(_executed(path)).values() if isinstance(value, Pipeline)}
    pipelines = list(found.values())
    if len(pipelines) != 1:
        names = ", ".join(pipeline.name for pipeline in pipelines)
        reason = f"it creates {len(pipelines)} pipelines ({names}); a file must create exactly one."
        raise PipelineError(
            str(path), [Problem(0, reason if pipelines else "it does not create a klamm.spark.pipeline.Pipeline.")]
        )
    return pipelines[0].spec(str(path))


def _executed(path: Path) -> Any:
    """Load the file as a module. It is registered under a unique name, because dataclasses look up their module."""
    source = path.read_text(encoding="utf-8")
    name = module_name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None:
        raise KlammError(f"{path}: not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
    except SyntaxError as error:
        raise PipelineError(str(path), [Problem(error.lineno or 1, f"not Python: {error.msg}.")]) from None
    except KlammError:
        raise
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        reason = f"{type(error).__name__}: {error}"
        raise PipelineError(str(path), [Problem((lines or [0])[-1] or 0, reason)]) from error
    return module


def module_name(path: Path) -> str:
    return "klamm_pipeline_" + re.sub(r"\W", "_", path.stem)
