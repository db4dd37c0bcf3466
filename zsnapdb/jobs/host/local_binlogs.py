"""Archived binlogs that are still on this host, where their server wrote them.

Nothing here is trusted: a binlog counts as the archived one if its bytes have the hashes of the archive's description.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from zsnapdb.base.errors import ZsnapdbError
from zsnapdb.mysql.binlog.binlog_keys import NO_KEYS, BinlogKeys
from zsnapdb.mysql.binlog.bytes import fingerprint, read_plain
from zsnapdb.mysql.binlog.opening import open_binlog
from zsnapdb.mysql.binlog.read import index_entries
from zsnapdb.planning.server_copy.identity import binlog_paths
from zsnapdb.repository.binlog_archive import BinlogArchive
from zsnapdb.repository.binlog_descriptions import ArchivedFile

_LONGEST_INDEX = 16 << 20
"""Bytes of the longest index that is read. Its path comes from the backup's manifest and could name any file."""


@dataclass(frozen=True)
class LocalBinlogs:
    """The binlogs in the index of a server on this host, by name."""

    paths: Mapping[str, Path] = field(default_factory=dict)
    keys: BinlogKeys = NO_KEYS

    @classmethod
    def of(cls, variables: Mapping[str, str], key_files: Sequence[str]) -> LocalBinlogs:
        """Return the binlogs of the server with these variables. None of them if its index cannot be read here.

        `key_files` are the files of its keyring, if it encrypts its binlogs.
        """
        named = binlog_paths(variables, "log_bin")
        if named is None:
            return cls()
        datadir = Path(variables["datadir"])
        try:
            if os.lstat(named[1]).st_size > _LONGEST_INDEX:
                return cls()
            entries = [datadir / entry for entry in index_entries(Path(named[1]))]
            # The folder may be behind links, as the server's own paths are. The file itself must not be one.
            paths = {path.name: Path(os.path.realpath(path.parent), path.name) for path in entries}
            return cls(paths, BinlogKeys(tuple(Path(file) for file in key_files)))
        except (ZsnapdbError, OSError, ValueError):
            return cls()

    def has(self, file: ArchivedFile) -> bool:
        """Whether the server's file of that name begins as the archived one, and is as long."""
        path = self.paths.get(file.name)
        if path is None:
            return False
        try:
            with open_binlog(path, self.keys) as opened:
                return opened.seek(0, 2) >= file.end and fingerprint(opened, file.head.end) == file.fingerprint
        except (ZsnapdbError, OSError):
            return False

    def copy(self, archive: BinlogArchive, file: ArchivedFile, target: Path) -> bool:
        """Write the archived bytes of the file to a new file `target`, from the server's own file.

        False, and no file at `target`, if the server's file is gone or has other bytes.
        """
        if not self.has(file):
            return False
        try:
            with open_binlog(self.paths[file.name], self.keys) as opened:
                return archive.copy_local(file, partial(read_plain, opened), target)
        except (ZsnapdbError, OSError):
            return False
