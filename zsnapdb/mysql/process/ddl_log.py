"""Reader of MariaDB's DDL log, which shows unfinished statements.

Crash recovery would finish such a statement and write it to the binlog. MariaDB 10.6+ keeps `ddl_recovery.log` in the
data directory (sql/ddl_log.cc): four bytes of magic, the block size as u16, then blocks. The first byte of a block is
its kind. Kind 1 is an entry for recovery to execute; any other kind is finished or a part of an entry.
"""

from __future__ import annotations

from pathlib import Path

from zsnapdb.base.errors import DamagedError, PreflightError
from zsnapdb.base.safe_open import open_to_read

FILE = "ddl_recovery.log"

_MAGIC = bytes((254, 254, 11, 2))
_EXECUTE = 1


def statements_half_done(datadir: Path) -> int:
    """Return the number of DDL statements that were running in the state of the files in `datadir`.

    Raise PreflightError if there is no log: a running server has one, elsewhere if log_ddl_recovery says so. Raise
    DamagedError if the file is not a known DDL log.
    """
    try:
        with open_to_read(datadir / FILE) as file:
            header = file.read(9)
            if len(header) < 9:
                # The log was just created and is empty.
                return 0
            size = int.from_bytes(header[4:6], "little")
            if header[:4] != _MAGIC or size < 64:
                raise DamagedError(
                    f"{datadir / FILE} is not the DDL log of a known MariaDB",
                    hint="use lock.strategy = 'stage', which does not need this log",
                )
            count, at = 0, size
            while True:
                file.seek(at)
                kind = file.read(1)
                if not kind:
                    return count
                count += kind[0] == _EXECUTE
                at += size
    except FileNotFoundError as error:
        raise PreflightError(
            f"{datadir / FILE} does not exist, so running DDL cannot be detected",
            hint="use lock.strategy = 'stage', or leave log_ddl_recovery at its default",
        ) from error
