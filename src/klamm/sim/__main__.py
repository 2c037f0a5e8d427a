"""`python -m klamm.sim`: see `klamm.sim.command`."""

from __future__ import annotations

import sys

from klamm.sim.command import main

sys.exit(main())
