"""`klamm tls`: a certificate authority for a cluster, and certificates of brokers and clients."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from klamm.cli.output import note, say

if TYPE_CHECKING:
    from klamm.security.certificates.authority import IssuedCertificate
    from klamm.security.certificates.certificate_store import CertificateStore

app = typer.Typer(help="Make certificates.", no_args_is_help=True)

_DEFAULT_DAYS: Final = 365
_BROKER: Final = "broker"
_CLIENT: Final = "client"

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="Directory of the authority and its certificates.")]
Hosts = Annotated[
    list[str],
    typer.Option(
        "--host",
        metavar="HOST",
        help="Further name or address of the brokers. Repeat the option for several. "
        "localhost, 127.0.0.1 and ::1 are always included. Without the option, `issue` keeps the hosts of the "
        "certificate that it replaces.",
    ),
]
Days = Annotated[int, typer.Option("--days", min=1, max=36_500, help="Days until the certificates expire.")]


@app.callback()
def tls() -> None:
    """Make certificates."""


@app.command()
def init(
    directory: Directory,
    host: Hosts = [],  # noqa: B006
    client: Annotated[
        list[str], typer.Option("--client", metavar="NAME", help="Name of a client certificate; may be repeated.")
    ] = [_CLIENT],  # noqa: B006
    days: Days = _DEFAULT_DAYS,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing authority.")] = False,
) -> None:
    """Make a certificate authority, a certificate for brokers and certificates for clients.

    The files are PEM and PKCS12; the password of the PKCS12 files is in the file `password`. Only you may read the
    directory. Keep ca-key.pem away from brokers and clients: its owner can issue certificates for any name.

    A client with the certificate of NAME is the principal User:CN=NAME. With ssl.principal.mapping.rules, brokers
    shorten it; `klamm up --tls` does so, and the client is User:NAME.
    """
    from klamm.cli.output import fail
    from klamm.security.certificates.authority import alternative_name
    from klamm.security.certificates.certificate_store import CertificateStore

    if _BROKER in client:
        fail(f"--client {_BROKER} would replace the certificate of the brokers: choose another name.")
    for name in host:  # before anything is written
        alternative_name(name)
    store = CertificateStore.create(directory, days, replace=force)
    issued = store.issue_broker(_BROKER, host, days)
    for name in dict.fromkeys(client):
        store.issue_client(name, days)
    note(f"Certificates are in {directory}, valid for {days} days. Hosts of the brokers: {_hosts(issued)}.")
    say("# lines for the properties of a broker")
    say("\n".join(_store_lines(store, _BROKER)))
    if client:
        say("# lines for the properties of a client")
        say("\n".join(["security.protocol=SSL", *_store_lines(store, client[0])]))


@app.command()
def issue(
    directory: Directory,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the certificate and of its files.")],
    broker: Annotated[bool, typer.Option("--broker", help="Issue a certificate for a broker.")] = False,
    host: Hosts = [],  # noqa: B006
    days: Days = _DEFAULT_DAYS,
) -> None:
    """Issue a certificate with the authority of `klamm tls init`, also to replace one that expires.

    Without --broker the certificate is a client's, and names no hosts. A certificate is only replaced by one of its
    kind. The new certificate of a broker keeps the hosts of the old one, unless you pass --host.
    """
    from klamm.cli.output import fail
    from klamm.security.certificates.certificate_store import CertificateStore

    if host and not broker:
        fail("--host requires --broker: the certificate of a client names no hosts.")
    store = CertificateStore.load(directory)
    _refuse_other_kind(store, name, is_broker=broker)
    hosts = ""
    if broker:
        issued = store.issue_broker(name, host or store.hosts_of(name), days)
        hosts = f" Its hosts are {_hosts(issued)}."
    else:
        store.issue_client(name, days)
    note(f"The certificate of {name} is in {store.keystore_path(name)}, valid for {days} days.{hosts}")
    say("\n".join(_store_lines(store, name)))


def _refuse_other_kind(store: CertificateStore, name: str, *, is_broker: bool) -> None:
    """A broker does not start with the certificate of a client."""
    from klamm.cli.output import fail

    was_broker = store.names_server(name)
    if was_broker is None or was_broker == is_broker:
        return
    path = store.keystore_path(name)
    if was_broker:
        fail(f"{path} is the certificate of a broker: pass --broker to replace it, or choose another name.")
    fail(f"{path} is the certificate of a client: omit --broker to replace it, or choose another name for the broker.")


def _hosts(issued: IssuedCertificate) -> str:
    from klamm.security.certificates.authority import hosts_of

    return ", ".join(hosts_of(issued.certificate))


def _store_lines(store: CertificateStore, name: str) -> list[str]:
    return [
        "ssl.keystore.type=PEM",
        f"ssl.keystore.location={store.keystore_path(name).absolute()}",
        "ssl.truststore.type=PEM",
        f"ssl.truststore.location={store.ca_path.absolute()}",
    ]
