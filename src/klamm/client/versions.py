"""Version negotiation without I/O: which ApiVersions request comes next, and which versions both sides have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from klamm.errors import ErrorCode
from klamm.lazy_dataclass import lazy_dataclass
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.wire import Message

_FIRST_VERSION: Final = 3
_SOFTWARE_VERSION: Final = "0"


@lazy_dataclass(frozen=True, slots=True)
class BrokerVersions:
    """The (lowest, highest) versions that a broker serves, by API key."""

    ranges: Mapping[int, tuple[int, int]]

    def highest(self, request: type[Message], limit: int | None = None) -> int:
        """Return the highest version, up to `limit`, that both sides have. Raises ConnectionError if there is none."""
        low, high = self.ranges.get(request.KEY, (0, -1))
        ours = request.VERSIONS[-1] if limit is None else min(limit, request.VERSIONS[-1])
        version = min(high, ours)
        if version < max(low, request.VERSIONS[0]):
            raise ConnectionError(f"the broker serves {request.__name__} in versions {low} to {high} only")
        return version


class Negotiation:
    """Send `request` in `version` and pass the response to `receive`, until `result` is not None.

    A broker that does not know the version answers UNSUPPORTED_VERSION and is asked again in version 0.
    """

    def __init__(self, software_name: str) -> None:
        self.version = _FIRST_VERSION
        self.result: BrokerVersions | None = None
        self._software_name = software_name

    @property
    def request(self) -> ApiVersionsRequest:
        if self.version == 0:
            return ApiVersionsRequest()
        return ApiVersionsRequest(client_software_name=self._software_name, client_software_version=_SOFTWARE_VERSION)

    def receive(self, response: ApiVersionsResponse) -> None:
        """Raises ConnectionError if the broker reports an error in version 0 too."""
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION and self.version > 0:
            self.version = 0
        elif response.error_code != ErrorCode.NONE:
            raise ConnectionError(f"the broker rejected ApiVersions: error {response.error_code}")
        else:
            self.result = BrokerVersions({key.api_key: (key.min_version, key.max_version) for key in response.api_keys})
