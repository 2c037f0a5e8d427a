"""Decoders can be written to files and imported like any module."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from random import Random

import pytest

from klamm.protocol.decoder_file import decoder_file
from klamm.protocol.messages import BY_KEY
from klamm.protocol.messages.fetch import FetchRequest
from klamm.protocol.messages.produce import ProduceRequest
from klamm.protocol.wire import Message, decode, encode_bytes
from tests.wire.samples import random_message


@pytest.mark.parametrize(("cls", "version"), [(ProduceRequest, 7), (ProduceRequest, 9), (FetchRequest, 12)])
def test_an_imported_decoder_decodes_as_the_compiled_one(cls: type[Message], version: int, tmp_path: Path) -> None:
    path = tmp_path / "decoder.py"
    path.write_text(decoder_file(cls, version))
    spec = importlib.util.spec_from_file_location("decoder", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rng = Random(7)
    for _ in range(20):
        raw = encode_bytes(random_message(cls, version, rng), version)
        assert module.decode(raw, 0) == decode(cls, version, raw)


@pytest.mark.parametrize("key", sorted(BY_KEY))
def test_every_decoder_has_a_file(key: int) -> None:
    for cls in BY_KEY[key]:
        for version in cls.VERSIONS:
            compile(decoder_file(cls, version), f"{cls.__name__} v{version}", "exec")
