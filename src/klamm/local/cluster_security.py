"""ClusterSecurity: certificates, users and secrets of a local cluster, and the settings that clients need.

They are kept in the directory `security` of the cluster's data, so that a cluster keeps them across starts.
"""

from __future__ import annotations

import json
import re
import secrets
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from klamm.errors import KlammError
from klamm.local.security_choice import ADMIN, BROKER, SecurityChoice
from klamm.security.certificates.private_files import make_private_directory, write_private
from klamm.security.client_security import PLAINTEXT, ClientSecurity
from klamm.security.sasl.mechanisms import PLAIN
from klamm.zk.client.zk_security import UNSECURED, Login, ZkSecurity

LIBRARIES: Final = ("confluent-kafka", "aiokafka", "kafka-python", "java")
_DAYS: Final = 825
_END: Final = "-----END CERTIFICATE-----"
_ZOOKEEPER_USER: Final = "klamm"
_CHOICE: Final = "choice.json"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")


def serves_certificate(address: tuple[str, int], path: Path) -> bool:
    """Whether a server presents the first certificate of this PEM file."""
    try:
        served = ssl.get_server_certificate(address)
    except OSError:
        return False
    found = path.read_text()
    first = found[found.index("-----BEGIN CERTIFICATE-----") :]
    return ssl.PEM_cert_to_DER_cert(served) == ssl.PEM_cert_to_DER_cert(first[: first.index(_END) + len(_END)])


def made_with(data_dir: Path) -> SecurityChoice | None:
    """Return the arguments with which the cluster in this directory was last started; None if it was never secured."""
    try:
        found = json.loads((data_dir / "security" / _CHOICE).read_text())
    except FileNotFoundError:
        return None
    return SecurityChoice(**found)


class ClusterSecurity:
    """Owner of the users and their passwords. `prepare` makes or loads everything before processes start."""

    def __init__(self, choice: SecurityChoice, data_dir: Path, *, has_own_zookeeper: bool) -> None:
        self.choice = choice
        self._directory = data_dir / "security"
        self._has_own_zookeeper = has_own_zookeeper
        self._passwords: dict[str, str] = {}
        self._zookeeper_password = ""
        self._of_admin: ClientSecurity | None = None
        self._is_prepared = False

    @property
    def is_on(self) -> bool:
        return self.choice.is_on

    def prepare(self) -> None:
        """Prepare the files once. Later calls have no effect."""
        if not self.is_on or self._is_prepared:
            return
        self._is_prepared = True
        self._directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        make_private_directory(self._directory)
        self._load_users()
        if self.choice.tls and not (self._directory / "ca.pem").exists():
            self._store(is_new=True).issue_broker(BROKER, (), _DAYS)
        for name in (BROKER, ADMIN):
            self.add_user(name)
        choice = {name: getattr(self.choice, name) for name in ("tls", "mutual", "sasl", "acls")}
        write_private(self._path(_CHOICE), json.dumps(choice).encode())

    def renew_broker_certificate(self, days: int = _DAYS) -> Path:
        """Issue a new certificate for the brokers; return its file. Brokers use it after their keystore is reloaded."""
        store = self._store()
        store.issue_broker(BROKER, store.hosts_of(BROKER), days)
        return self._path(f"{BROKER}.pem")

    # --- users -------------------------------------------------------------------------------------------------------

    @property
    def users(self) -> Mapping[str, str]:
        """The users with their passwords."""
        return dict(self._passwords)

    def has_user(self, name: str) -> bool:
        return name in self._passwords

    def add_user(self, name: str, password: str | None = None) -> None:
        """Remember a user, with a new password if none is given. A user that exists keeps its password."""
        if not _NAME.fullmatch(name):
            raise ValueError(f"user cannot be {name!r}: expected 1 to 64 letters, digits and characters of _.@-")
        self.prepare()
        if password is None:
            password = self._passwords.get(name) or secrets.token_urlsafe(18)
        if self._passwords.get(name) != password:
            self._passwords[name] = password
            self._save_users()
        if self.choice.mutual and not self._path(f"{name}.pem").exists():
            self._store().issue_client(name, _DAYS)

    def _load_users(self) -> None:
        try:
            found = json.loads(self._path("users.json").read_text())
        except FileNotFoundError:
            found = {"zookeeper": secrets.token_urlsafe(24), "users": {}}
        self._zookeeper_password, self._passwords = found["zookeeper"], dict(found["users"])

    def _save_users(self) -> None:
        text = json.dumps({"zookeeper": self._zookeeper_password, "users": self._passwords}, indent=1)
        write_private(self._path("users.json"), text.encode())

    # --- brokers and ZooKeeper ---------------------------------------------------------------------------------------

    def broker_properties(self) -> dict[str, object]:
        """Keys with paths and passwords, in addition to those of the choice."""
        keys: dict[str, object] = {}
        if self.choice.tls:
            keys |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": self._path(f"{BROKER}.pem"),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": self._path("ca.pem"),
            }
        if self.choice.sasl is not None:
            prefix = f"listener.name.{self.choice.listener.lower()}.{self.choice.sasl.lower()}."
            users = dict(self._passwords) if self.choice.sasl == PLAIN else None
            keys[f"{prefix}sasl.jaas.config"] = self.choice.jaas(BROKER, self._passwords[BROKER], users)
        if self.is_on and self._has_own_zookeeper:
            keys["klamm.zookeeper.digest"] = self.zookeeper_secret
            keys["zookeeper.set.acl"] = True
        return keys

    @property
    def zookeeper_secret(self) -> str:
        return f"{_ZOOKEEPER_USER}:{self._zookeeper_password}"

    def secret_file(self) -> Path | None:
        """Write the secret of the embedded ZooKeeper to a file; None if it has none."""
        if not (self.is_on and self._has_own_zookeeper):
            return None
        path = self._path("zookeeper-secret")
        write_private(path, self.zookeeper_secret.encode())
        return path

    @property
    def zookeeper(self) -> ZkSecurity:
        if not (self.is_on and self._has_own_zookeeper):
            return UNSECURED
        return ZkSecurity(digest=Login(_ZOOKEEPER_USER, self._zookeeper_password), set_acl=True)

    @property
    def of_admin(self) -> ClientSecurity:
        """The security of the cluster's own requests, made once: files are read for it."""
        if self._of_admin is None:
            self._of_admin = self.client_security(ADMIN)
        return self._of_admin

    def client_security(self, user: str) -> ClientSecurity:
        return ClientSecurity.from_properties(self.properties(user)) if self.is_on else PLAINTEXT

    # --- clients -----------------------------------------------------------------------------------------------------

    def properties(self, user: str) -> dict[str, str]:
        """The settings of Kafka's Java clients, without the brokers' addresses."""
        if not self.is_on:
            return {}
        keys = {"security.protocol": self.choice.protocol.name}
        if self.choice.tls:
            keys |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self._path("ca.pem"))}
        if self.choice.mutual:
            keys |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(self._path(f"{user}.pem"))}
        if self.choice.sasl is not None:
            keys["sasl.mechanism"] = self.choice.sasl
            keys["sasl.jaas.config"] = self.choice.jaas(user, self._password(user))
        return keys

    def client_config(self, user: str, servers: str, library: str) -> dict[str, Any]:
        if library == "java":
            return {"bootstrap.servers": servers, **self.properties(user)}
        if library == "confluent-kafka":
            return {"bootstrap.servers": servers, **self._librdkafka(user)}
        if library in ("aiokafka", "kafka-python"):
            return {"bootstrap_servers": servers, **self._python(user)}
        raise ValueError(f"library cannot be {library!r}: expected one of {', '.join(LIBRARIES)}.")

    def _librdkafka(self, user: str) -> dict[str, Any]:
        if not self.is_on:
            return {}
        keys: dict[str, Any] = {"security.protocol": self.choice.protocol.name}
        if self.choice.tls:
            keys["ssl.ca.location"] = str(self._path("ca.pem"))
        if self.choice.mutual:
            keys["ssl.certificate.location"] = str(self._path(f"{user}-cert.pem"))
            keys["ssl.key.location"] = str(self._path(f"{user}-key.pem"))
        if self.choice.sasl is not None:
            keys |= {"sasl.mechanism": self.choice.sasl, "sasl.username": user, "sasl.password": self._password(user)}
        return keys

    def _python(self, user: str) -> dict[str, Any]:
        if not self.is_on:
            return {}
        keys: dict[str, Any] = {"security_protocol": self.choice.protocol.name}
        if self.choice.tls:
            context = ssl.create_default_context(cafile=self._path("ca.pem"))
            if self.choice.mutual:
                context.load_cert_chain(self._path(f"{user}.pem"))
            keys["ssl_context"] = context
        if self.choice.sasl is not None:
            keys["sasl_mechanism"] = self.choice.sasl
            keys |= {"sasl_plain_username": user, "sasl_plain_password": self._password(user)}
        return keys

    # --- inside ------------------------------------------------------------------------------------------------------

    def _password(self, user: str) -> str:
        if user not in self._passwords:
            raise KlammError(f"There is no user {user}: use add_user().")
        return self._passwords[user]

    def _path(self, name: str) -> Path:
        return self._directory / name

    def _store(self, *, is_new: bool = False) -> Any:
        from klamm.security.certificates.certificate_store import CertificateStore  # slow to import

        return CertificateStore.create(self._directory, _DAYS) if is_new else CertificateStore.load(self._directory)
