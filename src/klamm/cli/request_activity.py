"""The requests of all brokers by API: rates, errors, and the time of each phase, from two readings of metrics."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

_PREFIX: Final = "kafka_network_requestmetrics_"
REQUESTS: Final = f"{_PREFIX}requests_total"
ERRORS: Final = f"{_PREFIX}errors_total"
PHASES: Final = {
    "request_queue": f"{_PREFIX}requestqueuetimems",
    "local": f"{_PREFIX}localtimems",
    "remote": f"{_PREFIX}remotetimems",
    "response_order": f"{_PREFIX}responseordertimems",
    "response_queue": f"{_PREFIX}responsequeuetimems",
    "response_send": f"{_PREFIX}responsesendtimems",
    "throttle": f"{_PREFIX}throttletimems",
}
TOTAL: Final = f"{_PREFIX}totaltimems"
NAMES: Final = (REQUESTS, ERRORS, TOTAL, *PHASES.values())
_SAMPLE: Final = re.compile(r"(?P<name>[a-z_]+)\{(?P<tags>.*)\}")
_TAG: Final = re.compile(r'(\w+)="([^"]*)"')
_QUANTILE: Final = "0.99"


@dataclass(slots=True)
class RequestActivity:
    """One API. Rates are per second; times are the largest 99th percentile of any broker, in milliseconds."""

    api: str
    rate: float | None = None
    error_rate: float | None = None
    total_ms: float = 0.0
    phases_ms: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Counted:
    """The counters of one broker that belong to requests, by API."""

    requests: Mapping[str, float]
    errors: Mapping[str, float]
    times: Mapping[tuple[str, str], float]


def count(metrics: Mapping[str, float]) -> Counted:
    """Add up a broker's samples by API; errors are those other than NONE."""
    requests: dict[str, float] = {}
    errors: dict[str, float] = {}
    times: dict[tuple[str, str], float] = {}
    for sample, value in metrics.items():
        found = _SAMPLE.fullmatch(sample)
        tags = dict(_TAG.findall(found["tags"])) if found else {}
        api = tags.get("request")
        if found is None or api is None:
            continue
        name = found["name"]
        if name == REQUESTS:
            requests[api] = requests.get(api, 0.0) + value
        elif name == ERRORS and tags.get("error") != "NONE":
            errors[api] = errors.get(api, 0.0) + value
        elif tags.get("quantile") == _QUANTILE and value == value:
            times[api, name] = value
    return Counted(requests, errors, times)


def request_activities(
    now: Mapping[int, Counted], before: Mapping[int, Counted], seconds: float
) -> list[RequestActivity]:
    """Compare two readings of all brokers. The busiest API comes first; an API without a request is left out."""
    found: dict[str, RequestActivity] = {}
    for counted in now.values():
        for api in counted.requests:
            found.setdefault(api, RequestActivity(api))
    for api, activity in found.items():
        activity.rate = _rate([(it.requests.get(api, 0.0), _before(before, b, api)) for b, it in now.items()], seconds)
        errors = [(it.errors.get(api, 0.0), _errors_before(before, b, api)) for b, it in now.items()]
        activity.error_rate = _rate(errors, seconds)
        activity.total_ms = max((it.times.get((api, TOTAL), 0.0) for it in now.values()), default=0.0)
        for phase, name in PHASES.items():
            activity.phases_ms[phase] = max((it.times.get((api, name), 0.0) for it in now.values()), default=0.0)
    return sorted(found.values(), key=lambda it: (-(it.rate or 0.0), it.api))


def _before(before: Mapping[int, Counted], broker: int, api: str) -> float | None:
    return before[broker].requests.get(api, 0.0) if broker in before else None


def _errors_before(before: Mapping[int, Counted], broker: int, api: str) -> float | None:
    return before[broker].errors.get(api, 0.0) if broker in before else None


def _rate(pairs: Iterable[tuple[float, float | None]], seconds: float) -> float | None:
    """None without two readings. The counters of a restarted broker begin again and count from zero."""
    known = [(now, before) for now, before in pairs if before is not None]
    if not known or seconds <= 0:
        return None
    return sum(now - before if now >= before else now for now, before in known) / seconds
