"""All aimed scenarios of transactions, by name."""

from __future__ import annotations

from typing import Final

from klamm.sim.transactions.aimed_stage import Aim
from klamm.sim.transactions.aims_of_compaction import AIMS_OF_COMPACTION
from klamm.sim.transactions.aims_of_ends import AIMS_OF_ENDS
from klamm.sim.transactions.aims_of_groups import AIMS_OF_GROUPS
from klamm.sim.transactions.aims_of_late_requests import AIMS_OF_LATE_REQUESTS
from klamm.sim.transactions.aims_of_limits import AIMS_OF_LIMITS
from klamm.sim.transactions.aims_of_logs import AIMS_OF_LOGS
from klamm.sim.transactions.aims_of_markers import AIMS_OF_MARKERS
from klamm.sim.transactions.aims_of_pauses import AIMS_OF_PAUSES
from klamm.sim.transactions.aims_of_races import AIMS_OF_RACES
from klamm.sim.transactions.aims_of_requests import AIMS_OF_REQUESTS
from klamm.sim.transactions.aims_of_waits import AIMS_OF_WAITS

AIMS: Final[dict[str, Aim]] = {
    **AIMS_OF_ENDS,
    **AIMS_OF_MARKERS,
    **AIMS_OF_LATE_REQUESTS,
    **AIMS_OF_GROUPS,
    **AIMS_OF_LOGS,
    **AIMS_OF_COMPACTION,
    **AIMS_OF_REQUESTS,
    **AIMS_OF_LIMITS,
    **AIMS_OF_PAUSES,
    **AIMS_OF_RACES,
    **AIMS_OF_WAITS,
}
