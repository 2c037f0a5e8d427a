"""DrillRelays: the ports of a cluster with a fault drill. Others know a relay's port; the broker has one of its own."""

from __future__ import annotations

from klamm.local.drill_network import DrillNetwork
from klamm.local.ports import LOOPBACK, ReservedPort


class DrillRelays:
    """Reserves the ports behind the relays while the cluster exists."""

    def __init__(self, zookeeper_port: int) -> None:
        self.network = DrillNetwork()
        self._zookeeper_port = zookeeper_port
        self._data: dict[int, ReservedPort] = {}
        self._control: dict[int, ReservedPort] = {}
        self._zookeeper: dict[int, ReservedPort] = {}

    def add(self, broker_id: int, port: int, control_port: int | None) -> None:
        """Listen on a broker's public ports, and on one for its way to ZooKeeper."""
        self._data[broker_id] = ReservedPort()
        self.network.relay_to_broker(broker_id, port, self._data[broker_id].number)
        if control_port is not None:
            self._control[broker_id] = ReservedPort()
            self.network.relay_to_broker(broker_id, control_port, self._control[broker_id].number)
        self._zookeeper[broker_id] = ReservedPort()
        self.network.relay_to_zookeeper(broker_id, self._zookeeper[broker_id].number, self._zookeeper_port)

    def listening_port(self, broker_id: int) -> int:
        return self._data[broker_id].number

    def listening_addresses(self, broker_id: int) -> tuple[str, str]:
        """Return the addresses for data and for the control plane; they are the same without a control plane."""
        data = self._data[broker_id]
        return f"{LOOPBACK}:{data.number}", f"{LOOPBACK}:{self._control.get(broker_id, data).number}"

    def zookeeper_address(self, broker_id: int) -> str:
        return f"{LOOPBACK}:{self._zookeeper[broker_id].number}"

    def heal_all(self) -> None:
        for broker_id in self._data:
            self.network.heal(broker_id)

    def close(self) -> None:
        self.network.close()
        for port in (*self._data.values(), *self._control.values(), *self._zookeeper.values()):
            port.close()
