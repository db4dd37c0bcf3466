"""Where each storage engine keeps the rows of its tables, and whether they survive a crash. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

UNKNOWN = "unknown"
"""The engine of a table that the server cannot open. It is unknown whether its files survive a crash."""


class RowPlace(StrEnum):
    """The location of a table's rows: files of the server, its memory, nowhere, or elsewhere."""

    FILES = "files"
    MEMORY = "memory"
    NOWHERE = "nowhere"
    OTHER_TABLES = "other tables"
    """In the tables that the definition lists (UNION)."""
    ELSEWHERE = "elsewhere"
    """On another host, or in files that another program writes."""


_PLACES = {
    "memory": RowPlace.MEMORY,
    "blackhole": RowPlace.NOWHERE,
    "performance_schema": RowPlace.NOWHERE,
    "sequence": RowPlace.NOWHERE,
    "mrg_myisam": RowPlace.OTHER_TABLES,
    "federated": RowPlace.ELSEWHERE,
    "connect": RowPlace.ELSEWHERE,
    "spider": RowPlace.ELSEWHERE,
    "ndbcluster": RowPlace.ELSEWHERE,
    "s3": RowPlace.ELSEWHERE,
    "sphinx": RowPlace.ELSEWHERE,
}
"""`sequence` is the engine of MariaDB's virtual tables `seq_1_to_9`, not the table type of CREATE SEQUENCE."""
_RECOVERS = ("innodb", "rocksdb")
_NO_FILES = ("memory", "blackhole", "performance_schema", "sequence", "federated")
"""CONNECT is not listed: most types of CONNECT tables are files, by default in the data directory."""


def row_place(engine: str) -> RowPlace:
    """Return where the engine keeps its rows. An unknown engine is assumed to use files."""
    return _PLACES.get(engine.lower(), RowPlace.FILES)


def survives_a_crash(engine: str) -> bool:
    """Return whether the files of the engine's tables are intact after a crash at any moment, or there are no files."""
    return engine.lower() in (*_RECOVERS, *_NO_FILES)


def rows_not_restored(engines: Mapping[str, int]) -> tuple[str, ...]:
    """Return a sentence for each engine whose rows no restore brings back. `engines` are table counts by engine."""
    words = {
        RowPlace.MEMORY: "only in the memory of the server, so a restore brings them back without rows",
        RowPlace.ELSEWHERE: "not in the files of the server, so a snapshot does not hold them",
    }
    sentences = []
    for engine, count in sorted(engines.items()):
        place = row_place(engine)
        if place in words:
            sentences.append(f"the rows of {count} {engine} table(s) are {words[place]}")
    return tuple(sentences)
