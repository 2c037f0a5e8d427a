"""Lost records: an error, or a warning if the query sets failOnDataLoss=false."""

from __future__ import annotations

import logging

from klamm.errors import KlammError
from klamm.spark.source.read_options import ReadOptions
from klamm.spark.source.source_offsets import OffsetRange

_log = logging.getLogger(__name__)


class DataLossError(KlammError):
    """Records that the query needs no longer exist."""


def loss(range_: OffsetRange, why: str, options: ReadOptions) -> None:
    """Raise DataLossError, or log a warning with failOnDataLoss=false."""
    lost = f"{range_.tp}: the offsets {range_.start} to {range_.end - 1} are gone: {why}."
    if options.fail_on_data_loss:
        raise DataLossError(f"{lost} Set failOnDataLoss=false to continue without them.")
    _log.warning("%s The query continues without them.", lost)
