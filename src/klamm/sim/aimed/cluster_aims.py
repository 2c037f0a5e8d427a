"""All aimed scenarios of the control plane and of replication, by name."""

from __future__ import annotations

from typing import Final

from klamm.sim.aimed.aims_of_control import AIMS_OF_CONTROL
from klamm.sim.aimed.aims_of_damage import AIMS_OF_DAMAGE
from klamm.sim.aimed.aims_of_replication import AIMS_OF_REPLICATION
from klamm.sim.aimed.aims_of_states import AIMS_OF_STATES
from klamm.sim.aimed.cluster_stage import ClusterAim

CLUSTER_AIMS: Final[dict[str, ClusterAim]] = {
    **AIMS_OF_CONTROL,
    **AIMS_OF_STATES,
    **AIMS_OF_REPLICATION,
    **AIMS_OF_DAMAGE,
}
