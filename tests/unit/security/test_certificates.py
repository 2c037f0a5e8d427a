"""Names in certificates, and the checks of new key material."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import ObjectIdentifier
from cryptography.x509.oid import NameOID

from klamm.errors import ConfigError
from klamm.security.certificates.certificate_store import CertificateStore
from klamm.security.secret import Secret
from klamm.security.tls.contexts import TlsSettings, client_context, server_context
from klamm.security.tls.key_checks import check_successor, check_trusted
from klamm.security.tls.principal_mapping import PrincipalMapper, distinguished_name
from klamm.security.tls.stores import KeyPair
from tests.support.certificates import Authority, Issued

AUTHORITY = Authority()


def pair(issued: Issued) -> KeyPair:
    return KeyPair(issued.certificate_pem, Secret(issued.key_pem))


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        (
            [(NameOID.COUNTRY_NAME, "US"), (NameOID.ORGANIZATION_NAME, "a, b"), (NameOID.COMMON_NAME, "x")],
            r"CN=x,O=a\, b,C=US",
        ),
        (
            [(NameOID.COMMON_NAME, "alice"), (NameOID.EMAIL_ADDRESS, "alice@example.com")],
            "1.2.840.113549.1.9.1=#1611616c696365406578616d706c652e636f6d,CN=alice",
        ),
        (
            [
                (NameOID.SERIAL_NUMBER, "42"),
                (NameOID.TITLE, "Dr"),
                (NameOID.USER_ID, "u"),
                (NameOID.STREET_ADDRESS, "M 1"),
            ],
            "STREET=M 1,UID=u,2.5.4.12=#0c024472,2.5.4.5=#13023432",
        ),
        ([(NameOID.COMMON_NAME, ' a=b#c;<d>+"e"\\f ')], r"CN=\ a\=b\#c\;\<d\>\+\"e\"\\f\ "),
        ([(NameOID.COMMON_NAME, "  two  "), (NameOID.ORGANIZATION_NAME, " ")], r"O=\ ,CN=\ \ two\ \ "),
        ([(NameOID.LOCALITY_NAME, "Zürich 漢"), (NameOID.ORGANIZATIONAL_UNIT_NAME, "#x")], r"OU=\#x,L=Zürich 漢"),
    ],
    ids=["comma", "email", "types", "special characters", "spaces", "beyond ASCII"],
)
def test_the_distinguished_name_is_written_as_in_java(subject: list[tuple[ObjectIdentifier, str]], name: str) -> None:
    """The names are those that `X500Principal.getName()` returns for such certificates."""
    issued = AUTHORITY.issue(*subject)
    assert distinguished_name(issued.certificate.public_bytes(Encoding.DER)) == name


RULES = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/, "
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L, "
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U, DEFAULT"
)


@pytest.mark.parametrize(
    ("rules", "name", "principal"),
    [
        (RULES, "CN=Duke,OU=ServiceUsers,O=Org,C=US", "Duke"),
        (RULES, "CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        (RULES, "cn=duke,OU=JavaSoft,O=Sun Microsystems", "DUKE"),
        (RULES, "OU=JavaSoft,O=Sun Microsystems", "OU=JavaSoft,O=Sun Microsystems"),
        ("DEFAULT", "CN=x", "CN=x"),
        ("", "CN=x", "CN=x"),
        ("RULE:^CN=(x)$/$1$2$10/", "CN=x", "x$2x0"),
        ("RULE:^CN=a\\/b$/c\\/d/", "CN=a/b", "c/d"),
        ("RULE:^CN=y$/y/", "CN=x", None),
        ("RULE:(.*)/u-$1/", "CN=x", "u-CN=xu-"),
        ("RULE:CN=(.*?)/u-$1/", "CN=x,OU=y", "u-x,OU=y"),
    ],
)
def test_the_first_rule_that_matches_decides(rules: str, name: str, principal: str | None) -> None:
    assert PrincipalMapper.parse(rules).name_of(name) == principal


@pytest.mark.parametrize("rules", ["RULE:a/b", "RULE", "nonsense", "DEFAULT DEFAULT", "RULE:(/x/"])
def test_malformed_rules_are_refused(rules: str) -> None:
    with pytest.raises(ValueError):
        PrincipalMapper.parse(rules)


def test_a_broker_must_trust_its_own_certificate() -> None:
    server = server_context(TlsSettings(pair(AUTHORITY.issue()), AUTHORITY.pem, "required"))
    own = client_context(TlsSettings(pair(AUTHORITY.issue()), AUTHORITY.pem))
    check_trusted(server, own, "localhost")
    check_trusted(server, own, "127.0.0.1")
    assert own.check_hostname, "the check leaves the context as it was"
    with pytest.raises(ConfigError, match="truststore does not accept its certificate"):
        check_trusted(server, client_context(TlsSettings(pair(AUTHORITY.issue()), Authority("other").pem)), "localhost")
    with pytest.raises(ConfigError, match="could not connect to each other"):
        check_trusted(server, client_context(TlsSettings(None, AUTHORITY.pem, protocols=("TLSv1.2",))), "localhost")


def test_a_broker_needs_a_certificate_with_its_advertised_name() -> None:
    server = server_context(TlsSettings(pair(AUTHORITY.issue(names=("broker-1.example",))), AUTHORITY.pem))
    settings = TlsSettings(pair(AUTHORITY.issue()), AUTHORITY.pem)
    check_trusted(server, client_context(settings), "broker-1.example")
    with pytest.raises(ConfigError, match=r"not for broker-2\.example, the name in advertised\.listeners"):
        check_trusted(server, client_context(settings), "broker-2.example")
    check_trusted(server, client_context(replace(settings, checks_hostname=False)), "broker-2.example")
    for host in ("broker..example", ".example", "b" * 64):
        with pytest.raises(ConfigError, match=r"no broker can connect to '.*advertised\.listeners: it is not a host"):
            check_trusted(server, client_context(settings), host)


def test_an_expired_certificate_is_named() -> None:
    server = server_context(TlsSettings(pair(AUTHORITY.issue(ended=True)), AUTHORITY.pem))
    with pytest.raises(ConfigError, match=r"has expired.*: issue a new one \(klamm tls issue --broker\)"):
        check_trusted(server, client_context(TlsSettings(None, AUTHORITY.pem)), "localhost")


def test_the_certificate_of_a_client_is_named(tmp_path: Path) -> None:
    store = CertificateStore.create(tmp_path, 1)
    store.issue_client("broker", 1)
    chain, key = (tmp_path / "broker-cert.pem").read_bytes(), Secret((tmp_path / "broker-key.pem").read_bytes())
    own = TlsSettings(KeyPair(chain, key), (tmp_path / "ca.pem").read_bytes())
    with pytest.raises(ConfigError, match=r"not a broker's \(unsuitable certificate purpose\).*: issue it with --b"):
        check_trusted(server_context(own), client_context(own), "localhost")


def test_a_new_certificate_has_the_old_names() -> None:
    old, same = AUTHORITY.issue(), AUTHORITY.issue()
    other = AUTHORITY.issue((NameOID.COMMON_NAME, "elsewhere"))
    check_successor(pair(old), pair(same), allows_subject=False, allows_names=False)
    with pytest.raises(ConfigError, match=r"ssl\.allow\.dn\.changes"):
        check_successor(pair(old), pair(other), allows_subject=False, allows_names=True)
    check_successor(pair(old), pair(other), allows_subject=True, allows_names=False)
