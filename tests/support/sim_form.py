"""The two forms of the tests of the simulator: `make test` runs the short one, `make sim` the long one."""

from __future__ import annotations

import os
from typing import Final

IS_LONG: Final = os.environ.get("KLAMM_SIM") == "long"
