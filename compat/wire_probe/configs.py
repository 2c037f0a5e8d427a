"""The settings of a topic and of a broker as DescribeConfigs shows them: flags, sources, types and defaults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from klamm.client.blocking_connection import ask_once
from klamm.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
)

RESOURCES: Final = ((2, "ta"), (4, "1"))
TIMEOUT_S: Final = 30.0
_DEFAULT: Final = 5
"""The source of a setting that nobody has changed."""
Address = tuple[str, int]


def _settings(address: Address, version: int, kind: int, name: str) -> Mapping[str, DescribeConfigsResourceResult]:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    [result] = ask_once(address, request, version, DescribeConfigsResponse, TIMEOUT_S).results
    return {setting.name: setting for setting in result.configs}


def _shown(setting: DescribeConfigsResourceResult, *, has_default: bool) -> str:
    flags = {"read-only": setting.read_only, "default": setting.is_default, "sensitive": setting.is_sensitive}
    parts = [flag for flag, is_set in flags.items() if is_set]
    parts.append(f"source {setting.config_source}, type {setting.config_type}")
    parts.append(f"synonyms {[(synonym.name, synonym.source) for synonym in setting.synonyms]}")
    return ", ".join([*parts, f"value {setting.value}"] if has_default else parts)


def differences(klamm: Address, kafka: Address, versions: Sequence[int]) -> Iterator[str]:
    """Settings that both have. The values are compared where both have their default."""
    for kind, name in RESOURCES:
        for version in versions:
            ours, theirs = (_settings(address, version, kind, name) for address in (klamm, kafka))
            for key in sorted(ours.keys() & theirs.keys()):
                has_default = ours[key].config_source == theirs[key].config_source == _DEFAULT
                one, two = (_shown(side[key], has_default=has_default) for side in (ours, theirs))
                if one != two:
                    yield f"v{version} {kind} {key}: klamm {one}, kafka {two}"
