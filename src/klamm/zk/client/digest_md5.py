"""The client of SASL DIGEST-MD5 (RFC 2831), the mechanism of ZooKeeper's DigestLoginModule. No I/O.

The mechanism is obsolete, but it is the only one of a ZooKeeper without Kerberos. It hides the password, not the data:
combine it with TLS.
"""

from __future__ import annotations

import hmac
import re
from hashlib import md5
from typing import Final

SERVICE: Final = "zookeeper"
HOST: Final = "zk-sasl-md5"
"""The host name that ZooKeeper's client and server agree on for this mechanism."""
_DIRECTIVE: Final = re.compile(r'\s*([A-Za-z-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^",\s]*))\s*(?:,|$)')
_FIRST_COUNT: Final = "00000001"


class DigestError(Exception):
    """The server's message is not DIGEST-MD5, or the server does not know the password."""


class DigestMd5:
    """One exchange: `respond` to the server's challenge, then `verify` its last message."""

    def __init__(self, username: str, password: str, client_nonce: str) -> None:
        self._username = username
        self._password = password
        self._client_nonce = client_nonce
        self._expected = ""

    def respond(self, challenge: bytes) -> bytes:
        found = _directives(challenge)
        if "nonce" not in found or found.get("algorithm") != "md5-sess":
            raise DigestError("the challenge is not DIGEST-MD5")
        if "auth" not in found.get("qop", "auth").split(","):
            raise DigestError(f"the server requires the protection {found['qop']}")
        nonce, realm, uri = found["nonce"], found.get("realm", ""), f"{SERVICE}/{HOST}"
        secret = md5(_latin(f"{self._username}:{realm}:{self._password}")).digest()
        session = md5(secret + f":{nonce}:{self._client_nonce}".encode()).hexdigest()

        def proof(method: str) -> str:
            method_hash = md5(f"{method}:{uri}".encode()).hexdigest()
            return md5(f"{session}:{nonce}:{_FIRST_COUNT}:{self._client_nonce}:auth:{method_hash}".encode()).hexdigest()

        self._expected = proof("")
        user, quoted_realm = _quoted(self._username), _quoted(realm)
        return (
            f'charset=utf-8,username="{user}",realm="{quoted_realm}",nonce="{_quoted(nonce)}",nc={_FIRST_COUNT},'
            f'cnonce="{self._client_nonce}",digest-uri="{uri}",maxbuf=65536,response={proof("AUTHENTICATE")},qop=auth'
        ).encode()

    def verify(self, message: bytes) -> None:
        """Raise DigestError unless the server proves that it knows the password too."""
        if not self._expected or not hmac.compare_digest(_directives(message).get("rspauth", ""), self._expected):
            raise DigestError("the server does not know the password")


def _directives(message: bytes) -> dict[str, str]:
    text = message.decode("utf-8", "replace")
    return {
        found[1].lower(): found[3] if found[2] is None else re.sub(r"\\(.)", r"\1", found[2])
        for found in _DIRECTIVE.finditer(text)
    }


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _latin(text: str) -> bytes:
    """ISO 8859-1 if the text has only such characters, else UTF-8: the rule of RFC 2831."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode()
