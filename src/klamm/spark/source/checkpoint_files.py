"""The files of a query's checkpoint, on any file system that Spark reaches.

The process with the Spark session reads them through Spark's JVM. Sinks commit in another Python process, which has
no JVM: it reads local directories only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from klamm.errors import KlammError
from klamm.spark.source.checkpoint_locations import METADATA, CheckpointUnreachableError, query_id_in, query_id_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OFFSETS: Final = "offsets"
"""The directory with one file per planned batch; Spark writes it before the batch runs."""
NO_BATCH: Final = -1


class CheckpointFiles(Protocol):
    def query_id(self) -> str:
        """Return the id of the query; empty if none has started from this checkpoint."""

    def planned_batches(self) -> list[int]:
        """Return the numbers of the batches in the offset log."""

    def offsets_of(self, batch_id: int) -> str | None:
        """Return the entry of a batch in the offset log; None if it is missing or unreadable."""


def newest_batch(files: CheckpointFiles) -> int:
    """Return the newest batch that Spark has planned; NO_BATCH if there is none. Spark repeats at most this one."""
    return max(files.planned_batches(), default=NO_BATCH)


class LocalCheckpoint:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._offsets = root / OFFSETS

    def query_id(self) -> str:
        return query_id_of(str(self._root))

    def planned_batches(self) -> list[int]:
        try:
            return _numbers([entry.name for entry in self._offsets.iterdir()])
        except OSError:
            return []

    def offsets_of(self, batch_id: int) -> str | None:
        try:
            return (self._offsets / str(batch_id)).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None


class SparkCheckpoint:
    """Reads with the settings and the credentials of the session, as the query itself does.

    Raises KlammError if the location is not a path. `query_id` and `planned_batches` raise CheckpointUnreachableError.
    """

    def __init__(self, spark: SparkSession, checkpoint: str) -> None:
        assert spark._jvm is not None, "Spark Connect has no JVM here, and klamm's queries do not run there"
        self._checkpoint = checkpoint
        self._jvm: Any = spark._jvm
        self._conf = spark._jsparkSession.sessionState().newHadoopConf()
        try:
            self._offsets, self._metadata = (self._path(checkpoint, name) for name in (OFFSETS, METADATA))
        except _java_errors() as error:
            raise KlammError(f"The checkpoint {checkpoint!r} is not a valid path: {_reason(error)}") from None

    def query_id(self) -> str:
        with self._reachable():
            if not self._metadata.getFileSystem(self._conf).exists(self._metadata):
                return ""
            return query_id_in(self._text(self._metadata))

    def planned_batches(self) -> list[int]:
        """Never returns an empty list for an unreachable checkpoint: an unknown one is not an empty one."""
        with self._reachable():
            files = self._offsets.getFileSystem(self._conf)
            if not files.exists(self._offsets):
                return []
            return _numbers([entry.getPath().getName() for entry in files.listStatus(self._offsets)])

    def offsets_of(self, batch_id: int) -> str | None:
        try:
            return self._text(self._path(self._offsets, str(batch_id)))
        except _java_errors():
            return None

    @contextmanager
    def _reachable(self) -> Iterator[None]:
        try:
            yield
        except _java_errors() as error:
            raise CheckpointUnreachableError(
                f"The checkpoint {self._checkpoint} cannot be read: {_reason(error)}"
            ) from None

    def _path(self, parent: Any, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(parent, name)

    def _text(self, place: Any) -> str:
        stream = place.getFileSystem(self._conf).open(place)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()


def _java_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of a Java call. PySpark converts some, such as IllegalArgumentException, to its own.

    The end of the JVM is another Py4JError, and is not among them.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors.exceptions.captured import CapturedException

    return (Py4JJavaError, CapturedException)


def _numbers(names: list[str]) -> list[int]:
    return [int(name) for name in names if name.isdecimal()]


def _reason(error: Any) -> str:
    """Return the first line of a Java error, without its stack."""
    java = getattr(error, "java_exception", None)
    lines = str(java.toString() if java is not None else error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
