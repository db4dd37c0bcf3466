"""Finds, before anything is changed, tables that a replay would make in another engine than their source had."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from zsnapdb.base.errors import PreflightError
from zsnapdb.jobs.host.archived_binlogs import LocalBinlogs
from zsnapdb.mysql.binlog.made_tables import MadeTables
from zsnapdb.planning.binlog.made_tables import OTHER_POINT, Defaults, RecordedTable, contradiction, plan_engines
from zsnapdb.planning.restore.steps import Replay
from zsnapdb.planning.server_copy.origin import option_name
from zsnapdb.repository.binlog_archive import BinlogArchive
from zsnapdb.repository.binlog_descriptions import ArchivedFile


def default_engine(variables: Mapping[str, str], options: Sequence[str]) -> Defaults:
    """Return the engine with which a replay begins: that of server.options, else that of the source."""
    own = [line.partition("=")[2].strip() for line in options if option_name(line) == "default_storage_engine"]
    return Defaults([variables.get("default_storage_engine", "InnoDB"), *own][-1])


def check_engines(
    archive: BinlogArchive, local: LocalBinlogs, files: Sequence[ArchivedFile], steps: Sequence[Replay], start: Defaults
) -> None:
    """Check that the steps can give each table its engine, as far as the descriptions of the binlogs say.

    A step is read only if one of its binlogs has a table without transactions whose engine nothing says: from that
    binlog on, because a later one may drop the table.

    Raises:
        PreflightError: a table had another engine than the replay would give it, and nothing says which
    """
    described = {(file.incarnation, file.name): file for file in files}
    for step in steps:
        parts = [(part, described[part.incarnation, part.file]) for part in step.logs]
        flags = [file.span.has_unknown_engine(part.start, part.stop) for part, file in parts]
        first = flags.index(True) if any(flags) else len(flags)
        made = MadeTables()
        records: dict[tuple[int, int], RecordedTable] = {}
        for number, (part, file) in enumerate(parts[first:]):
            with tempfile.TemporaryDirectory(prefix="zsnapdb-") as folder:
                path = Path(folder) / "binlog"
                if not local.copy(archive, file, path):
                    archive.fetch(file, path)
                os.truncate(path, part.size if part.stop is None else part.stop)
                with path.open("rb") as opened, contextlib.suppress(PreflightError):
                    # An encrypted binlog is read by the server alone.
                    made.read(opened, part.file, part.start, number)
            records |= {(number, table.offset): table.record for table in file.span.made}
        refused = contradiction(plan_engines(made.numbered(), records, start), start, step.by)
        if refused is not None:
            raise PreflightError(refused, hint=OTHER_POINT)
