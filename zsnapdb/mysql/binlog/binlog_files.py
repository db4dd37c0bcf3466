"""Access to a server's plain or encrypted binlogs. Reads always return plain bytes.

The decryption code is imported only for encrypted binlogs, because the import takes longer than reading the end of a
plain binlog.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from zsnapdb.base import safe_open
from zsnapdb.mysql.binlog.binlog_keys import NO_KEYS, BinlogKeys, file_key, missing_key
from zsnapdb.mysql.binlog.events import ENCRYPTED_MAGIC, StartEncryption
from zsnapdb.mysql.session import Session

if TYPE_CHECKING:
    from zsnapdb.mysql.binlog.encrypted_events import DecryptedEvents


_SYSTEM_KEY = file_key(1)
"""The key with which MariaDB encrypts binlogs (MariaDB manual, "Encrypting Binary Logs")."""


def open_binlog(path: Path, keys: BinlogKeys = NO_KEYS) -> BinaryIO:
    """Return the open binlog. If the binlog is encrypted, its data is decrypted while it is read.

    Only the requested bytes are read, except in binlogs that MariaDB encrypted. Raises PreflightError if the key is
    missing, and UnsafeFileError in the same cases as `safe_open.open_to_read`.
    """
    file = cast(io.BufferedReader, safe_open.open_to_read(path))
    raw = file.raw
    try:
        if file.read(len(ENCRYPTED_MAGIC)) == ENCRYPTED_MAGIC:
            from zsnapdb.mysql.binlog.encrypted_events import decrypted_file

            return _exact(decrypted_file(_exact(file.detach()), path, keys))
        start = StartEncryption.of(cast(BinaryIO, file))
        if start is not None:
            return cast(BinaryIO, io.BufferedReader(_decrypted_events(cast(BinaryIO, file), path, keys, start)))
    except BaseException:
        raw.close()
        raise
    file.seek(0)
    return _exact(file.detach())


def _exact(raw: io.RawIOBase) -> BinaryIO:
    """Return a file without read-ahead.

    ZFS blocks writers on the byte range that is being read (zfs_rangelock.c). A range that is read ahead can extend
    beyond the end of the file. In that case a server that appends to the file would wait for the reader.
    """
    return cast(BinaryIO, io.BufferedReader(raw, 1))


def _decrypted_events(file: BinaryIO, path: Path, keys: BinlogKeys, start: StartEncryption) -> DecryptedEvents:
    from zsnapdb.mysql.binlog.encrypted_events import Algorithm, DecryptedEvents

    key = keys.key(_SYSTEM_KEY)
    for algorithm in Algorithm if key is not None and len(key) in (16, 24, 32) else ():
        # The file does not record its encryption algorithm, so both algorithms are tried.
        reader = DecryptedEvents(file, _SYSTEM_KEY, key or b"", algorithm, start)
        if reader.is_fitting():
            reader.seek(0)
            return reader
        reader.give_back()
    raise missing_key(_SYSTEM_KEY, f"binlog {path.name}", keys.files)


def key_of(file: BinaryIO) -> str | None:
    """Return the name of the key that encrypts the open binlog; None if the binlog is not encrypted."""
    name: str | None = getattr(getattr(file, "raw", None), "key_name", None)
    return name


@dataclass(frozen=True)
class BinlogReader:
    """A connection that sends binlogs to a replica, with the replica's account and host and the connection's state."""

    user: str
    host: str
    state: str


def names(session: Session) -> list[str]:
    """Return the names of the server's binlogs, oldest first."""
    return [str(row[0]) for row in session.query("SHOW BINARY LOGS")]


def total_size(session: Session) -> int:
    """Return the size of all binlogs of the server in bytes. Raise ServerError if the server writes no binlogs."""
    return sum(int(row[1]) for row in session.query("SHOW BINARY LOGS"))


def purge_before(session: Session, name: str) -> None:
    """Remove all binlogs that are older than the binlog `name`.

    Raises ServerError if the server refuses the removal.
    """
    session.query("PURGE BINARY LOGS TO %s", (name,))


def readers(session: Session) -> list[BinlogReader]:
    """Return the connections that send binlogs to replicas.

    The session sees connections of other accounts only if it has the privilege PROCESS.
    """
    rows = session.query(
        "SELECT user, host, state FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%%'", ()
    )
    return [BinlogReader(str(user), str(host), str(state)) for user, host, state in rows]
