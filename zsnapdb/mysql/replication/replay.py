"""Replays binlogs as relay logs with the server's own applier, in parallel if the server supports this.

zsnapdb puts the files into a replication channel, as if the server had received the files itself. The following
conditions were tested on MySQL 9.7 and MariaDB 11.8 (tests/campaigns/points.py still tests them):

- the server's server_id must differ from the events' server_id, or the server skips the events as its own;
- relay_log_recovery must be off, or the server removes the files when it starts;
- MariaDB's parallel applier also needs the source's binlog name, because MariaDB 11.8 crashes in compare_log_name()
  without it.

The last file ends at the transaction boundary where the replay must end. Therefore no UNTIL clause is needed; some
UNTIL clauses would force a single thread. The applier is stopped and restarted only where the source changed its
default engine.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import SecretStr

from zsnapdb.base import safe_open
from zsnapdb.base.domain_types import Flavour, parse_gtids
from zsnapdb.base.errors import ConsistencyError, ServerError, ZsnapdbError
from zsnapdb.base.gtid import GtidPosition, Gtids, contains
from zsnapdb.base.safe_open import Owner
from zsnapdb.mysql.accounts import owner_sql
from zsnapdb.mysql.process import server
from zsnapdb.mysql.process.programs import Feed
from zsnapdb.mysql.session import Session
from zsnapdb.planning.binlog.created_tables import Defaults, EngineStop
from zsnapdb.planning.clone.migration_findings import AppliedSample
from zsnapdb.planning.server_copy.copy_options import BRIEF
from zsnapdb.planning.server_facts import plugin_hint
from zsnapdb.planning.sql_quoting import quoted

CHANNEL = "zsnapdb_replay"
ACCOUNT = "zsnapdb_restore"
_POLL_SECONDS = 0.1


ACCEPTING = (
    "loose_innodb_strict_mode=OFF",
    "loose_max_statement_time=0",
    "loose_max_execution_time=0",
    "loose_secure_timestamp=NO",
    "loose_sql_require_primary_key=OFF",
    "loose_table_encryption_privilege_check=OFF",
    "loose_binlog_format=ROW",
    "loose_disabled_storage_engines=",
    "loose_innodb_force_primary_key=OFF",
    "loose_system_versioning_alter_history=KEEP",
)
"""Options with which a server accepts every statement that its source accepted. These options do not change the effect
of any statement. The source's values are unknown, because no binlog event records them. `binlog_format`: a server with
STATEMENT refuses row events.
"""


def options(flavour: Flavour, workers: int) -> tuple[str, ...]:
    """Return the option file lines for a replay. All other lines must precede these lines.

    With one worker, the parallel applier is off, because passing transactions to a worker costs time. The server does
    not sync its files: after an interruption, the volumes are rolled back to the snapshot from before the replay. At
    the end of the replay, `make_durable` makes all changes durable.
    """
    both = (
        "relay_log_recovery=OFF",
        "relay_log_purge=ON",
        "sync_binlog=0",
        "innodb_flush_log_at_trx_commit=0",
        "event_scheduler=OFF",
        *BRIEF,
        *ACCEPTING,
    )
    workers = workers if workers > 1 else 0
    if flavour is Flavour.MARIADB:
        return (
            *both,
            "log_slave_updates=ON",
            "slave_parallel_mode=optimistic",
            f"slave_parallel_threads={workers}",
            "slave_parallel_max_queued=16777216",
            "slave_max_allowed_packet=1073741824",
        )
    return (
        *both,
        "loose_log_replica_updates=ON",
        f"loose_replica_parallel_workers={workers}",
        "loose_replica_preserve_commit_order=ON",
        "loose_replica_max_allowed_packet=1073741824",
    )


_OWN_DOMAIN = 4294967290
"""MariaDB GTID domain for transactions of other clients.

In their own domain, these GTIDs have no order relative to replayed GTIDs.
"""


def paced_settings(flavour: Flavour, workers: int) -> tuple[str, ...]:
    """Return the statements for a replay on a running server with other clients. The replay channel must exist.

    Changes to the schema `mysql` are filtered out. Account statements are also filtered out, because both families
    treat them as updates of tables in this schema (tests/system/test_migration_check.py tests this). The relay logs are
    kept. By default, MySQL reports the progress of its workers only every 300 ms (refman 8.4,
    replica_checkpoint_period).
    """
    ignored = "mysql.%"
    workers = workers if workers > 1 else 0
    if flavour is Flavour.MARIADB:
        return (
            "SET GLOBAL relay_log_purge = OFF",
            f"SET GLOBAL gtid_domain_id = {_OWN_DOMAIN}",
            f"SET GLOBAL slave_parallel_threads = {workers}",
            f"SET GLOBAL {CHANNEL}.replicate_wild_ignore_table = '{ignored}'",
        )
    return (
        "SET GLOBAL relay_log_purge = OFF",
        f"SET GLOBAL replica_parallel_workers = {max(1, workers)}",
        "SET GLOBAL replica_checkpoint_period = 10",
        f"CHANGE REPLICATION FILTER REPLICATE_WILD_IGNORE_TABLE = ('{ignored}') FOR CHANNEL '{CHANNEL}'",
    )


def make_durable(session: Session) -> None:
    """Make the server write all committed changes to disk, as its shutdown does.

    If nothing was synced and the server is killed during shutdown, its binlog can contain transactions that its tables
    lost. The GTIDs would not reveal the loss. With FLUSH ENGINE LOGS, MariaDB's InnoDB flushes its log only if commits
    flush it (ha_innodb.cc, innobase_flush_logs). Engines without a log write their changes when their tables are
    closed. The statements are not written to the binlog.
    """
    for statement in (
        "SET GLOBAL innodb_flush_log_at_trx_commit = 1",
        "SET GLOBAL sync_binlog = 1",
        "FLUSH LOCAL TABLES",
        "FLUSH LOCAL ENGINE LOGS",
    ):
        session.query(statement)


CLIENT_OPTIONS = (
    "sync_binlog=0",
    "innodb_flush_log_at_trx_commit=0",
    "event_scheduler=OFF",
    "max_allowed_packet=1073741824",
    "local_infile=ON",
    "read_only=OFF",
    "loose_super_read_only=OFF",
    *ACCEPTING,
    "loose_max_join_size=18446744073709551615",
    "loose_sql_generate_invisible_primary_key=OFF",
    "autocommit=ON",
)
"""Option file lines for a replay by a client.

super_read_only is off, because it would allow only the applier to write. The server adds no invisible primary key,
because statements in the binlog already include a key that the source added, and an applier never adds such a key.
"""


def client_feeds(
    tool: Path, files: Sequence[Path], start: int, scratch: Path, stops: Sequence[EngineStop]
) -> list[Feed]:
    """Return the input of the client's single session, which consists of the files as statements.

    The first file is read from offset `start`. At each stop, the default engine changes; the GTIDs do not. LOAD DATA
    files are written to the folder `scratch`.
    """
    ends: list[tuple[int, int | None]] = [*((stop.number, stop.offset) for stop in stops), (len(files), None)]
    texts = [
        "",
        *(
            f"SET SESSION default_storage_engine = '{stop.engine}';\n"
            f"SET GLOBAL innodb_default_row_format = '{stop.row_format}';\n"
            for stop in stops
        ),
    ]
    feeds = []
    for text, (number, begin), (last, end) in zip(texts, [(1, start), *ends], ends, strict=False):
        argv = [str(tool), "--no-defaults", f"--start-position={begin}", f"--local-load={scratch}"]
        argv += [] if end is None else [f"--stop-position={end}"]
        is_empty = (number, begin) == (last, end)
        feeds.append(Feed(text.encode(), None if is_empty else [*argv, *map(str, files[number - 1 : last])]))
    return feeds


def client_argv(client: Path, login: Path) -> list[str]:
    """Return the command line of the client that executes the replay. `login` is the client's option file."""
    return [str(client), f"--defaults-file={login}", "--binary-mode", "--max-allowed-packet=1G", "--local-infile=1"]


def account_sql(password: SecretStr) -> str:
    """Return the init file statements that create the replay account.

    The server does not write these statements to the binlog, and assigns no GTIDs to them.
    """
    return owner_sql(ACCOUNT, ("localhost",), password)


def drop_account(session: Session) -> None:
    """Drop the replay account, even if this session uses it. The statement is not written to the binlog."""
    session.query("SET SESSION sql_log_bin = 0")
    session.query(f"DROP USER '{ACCOUNT}'@'localhost'")


@dataclass(frozen=True)
class RelayLogs:
    """Relay log files of the replay channel. `base` is the server's relay_log (absolute, without number).

    `is_set` is True if the option relay_log is set. Otherwise the default in the data directory applies. In this case,
    the names in the index must be relative to the data directory, because MariaDB compares names literally (sql/log.cc,
    find_log_pos).
    """

    base: Path
    is_set: bool = True

    @property
    def _stem(self) -> Path:
        # Both families add the channel's name to base and index, before the extension (MariaDB: rpl_mi.cc, MySQL:
        # rpl_info_factory).
        return self.base.with_name(f"{self.base.name}-{CHANNEL}")

    @property
    def index(self) -> Path:
        return self.base.with_name(f"{self._stem.name}.index")

    def file(self, number: int) -> Path:
        """Return the path of the relay log with this number (from 1)."""
        return self.base.with_name(f"{self._stem.name}.{number:06d}")

    def remove(self) -> None:
        """Remove the files of an earlier replay."""
        for path in self.base.parent.glob(f"{self._stem.name}.*"):
            safe_open.remove(path)

    def take(self, count: int, account: str) -> None:
        """Write the index of the existing relay logs 1 to `count`.

        Make the server's account the owner of all these files.
        """
        owner, files = Owner(*server.account(account)), [self.file(number) for number in range(1, count + 1)]
        names = [str(file) if self.is_set else f"./{file.name}" for file in files]
        safe_open.write_text(self.index, "".join(f"{name}\n" for name in names), owner, 0o640)
        for file in files:
            safe_open.give(file, owner, 0o640)


@dataclass(frozen=True)
class ChannelStatements:
    """Statements of one server family for the replay channel.

    The parameter of `change_paced` is a delay in seconds, and the parameters of `start_until` are a relay log name and
    an offset in it. The query `failed_worker` returns the error of a worker. It is needed if the channel's status only
    reports that a worker failed, and empty for a family whose status contains the error.
    """

    change: str
    change_paced: str
    start: str
    start_until: str
    stop: str
    reset: str
    status: str
    executed: str
    failed_worker: str = ""

    @classmethod
    def of(cls, flavour: Flavour) -> ChannelStatements:
        if flavour is Flavour.MARIADB:
            change = (
                f"CHANGE MASTER '{CHANNEL}' TO MASTER_HOST = 'zsnapdb', MASTER_LOG_FILE = %s, MASTER_LOG_POS = %s, "
                "RELAY_LOG_FILE = %s, RELAY_LOG_POS = %s, MASTER_USE_GTID = no"
            )
            return cls(
                change,
                f"{change}, MASTER_DELAY = %s",
                f"START SLAVE '{CHANNEL}' SQL_THREAD",
                f"START SLAVE '{CHANNEL}' SQL_THREAD UNTIL RELAY_LOG_FILE = %s, RELAY_LOG_POS = %s",
                f"STOP SLAVE '{CHANNEL}' SQL_THREAD",
                f"RESET SLAVE '{CHANNEL}' ALL",
                f"SHOW SLAVE '{CHANNEL}' STATUS",
                "SELECT @@GLOBAL.gtid_binlog_pos",
            )
        change = (
            "CHANGE REPLICATION SOURCE TO SOURCE_HOST = 'zsnapdb', SOURCE_LOG_FILE = %s, SOURCE_LOG_POS = %s, "
            "RELAY_LOG_FILE = %s, RELAY_LOG_POS = %s, SOURCE_AUTO_POSITION = 0"
        )
        return cls(
            f"{change} FOR CHANNEL '{CHANNEL}'",
            f"{change}, SOURCE_DELAY = %s FOR CHANNEL '{CHANNEL}'",
            f"START REPLICA SQL_THREAD FOR CHANNEL '{CHANNEL}'",
            f"START REPLICA SQL_THREAD UNTIL RELAY_LOG_FILE = %s, RELAY_LOG_POS = %s FOR CHANNEL '{CHANNEL}'",
            f"STOP REPLICA SQL_THREAD FOR CHANNEL '{CHANNEL}'",
            f"RESET REPLICA ALL FOR CHANNEL '{CHANNEL}'",
            f"SHOW REPLICA STATUS FOR CHANNEL '{CHANNEL}'",
            "SELECT @@GLOBAL.gtid_executed",
            "SELECT last_error_message FROM performance_schema.replication_applier_status_by_worker"
            f" WHERE channel_name = '{CHANNEL}' AND last_error_number <> 0 LIMIT 1",
        )


@dataclass(frozen=True)
class ApplierStatus:
    """Progress of the applier, which reads relay log `number` at `offset`.

    `error` is the error that stopped the applier.
    """

    number: int
    offset: int
    is_running: bool
    has_read_all: bool
    error: str


def status(session: Session, words: ChannelStatements) -> ApplierStatus:
    """Return the progress of the server's applier."""
    (row,) = session.records(words.status)

    def first(*names: str) -> str:
        return next((str(row[name]) for name in names if row.get(name) is not None), "")

    name, error = first("Relay_Log_File"), first("Last_SQL_Error", "Last_Error")
    if error and words.failed_worker:
        error = next((str(message) for (message,) in session.query(words.failed_worker)), error)
    number = name.rpartition(".")[2]
    return ApplierStatus(
        number=int(number) if number.isdecimal() else 0,
        offset=int(first("Relay_Log_Pos") or 0),
        is_running=first("Replica_SQL_Running", "Slave_SQL_Running") == "Yes",
        has_read_all="has read all relay log" in first("Replica_SQL_Running_State", "Slave_SQL_Running_State"),
        error=error,
    )


def executed(session: Session, flavour: Flavour) -> Gtids:
    """Return the GTIDs that the server has executed."""
    return parse_gtids(flavour, str(session.value(ChannelStatements.of(flavour).executed)))


@dataclass(frozen=True)
class ReplayInput:
    """The input and the expected result of a replay.

    `sizes` contains the sizes of the relay logs in bytes, in order. The replay starts at the offset `start` of the
    first relay log, whose original binlog name is `file`. After the replay, the server must have exactly `gtids` (None
    if unknown). At each of the `stops`, the default engine changes and the applier is restarted, because its threads
    keep the engine with which they started.
    """

    sizes: tuple[int, ...]
    start: int
    file: str
    gtids: Gtids | None
    stops: tuple[EngineStop, ...] = ()


def defaults(session: Session) -> Defaults:
    """Return the default engine and row format of new tables."""
    engine = session.value("SELECT @@GLOBAL.default_storage_engine")
    return Defaults(str(engine), str(session.value("SELECT @@GLOBAL.innodb_default_row_format")))


def _apply_to_stop(session: Session, words: ChannelStatements, logs: RelayLogs, stop: EngineStop) -> None:
    """Apply all transactions before the stop with the previous default engine, then set the stop's default engine.

    A CREATE statement without table options uses the database's collation. Therefore the database's collation is
    changed for this one transaction.
    """
    _apply_until(session, words, logs, (stop.number, stop.offset))
    session.query("SET GLOBAL default_storage_engine = %s", (stop.engine,))
    session.query("SET GLOBAL innodb_default_row_format = %s", (stop.row_format,))
    before = [] if stop.database is None else session.query(_DATABASE_COLLATION, (stop.database,))
    if stop.database is not None and stop.collation is not None and before:
        _set_collation(session, stop.database, stop.collation)
        _apply_until(session, words, logs, (stop.number, stop.end))
        _set_collation(session, stop.database, str(before[0][0]))


_DATABASE_COLLATION = "SELECT default_collation_name FROM information_schema.schemata WHERE schema_name = %s"


def _set_collation(session: Session, database: str, collation: str) -> None:
    session.query("SET SESSION sql_log_bin = 0")
    session.query(f"ALTER DATABASE {quoted(database)} COLLATE %s", (collation,))
    session.query("SET SESSION sql_log_bin = 1")


def _apply_until(session: Session, words: ChannelStatements, logs: RelayLogs, place: tuple[int, int]) -> None:
    """Apply all transactions before the transaction boundary `place` (relay log number, offset)."""
    number, offset = place
    progress = status(session, words)
    if (progress.number, progress.offset) >= place:
        return
    session.query(words.start_until, (logs.file(number).name, offset))
    while (progress := status(session, words)).is_running:
        time.sleep(_POLL_SECONDS)
    # If the place is the first transaction of a file, MySQL stops before that file's header.
    if progress.error or progress.number != number:
        raise _stopped_error(progress.error)


def replay(
    session: Session, flavour: Flavour, logs: RelayLogs, source: ReplayInput, on_bytes: Callable[[int], None]
) -> None:
    """Apply all relay logs, remove the channel, and check that the server executed exactly the expected transactions.

    `on_bytes` receives the number of binlog bytes read so far. Raises ConsistencyError if the applier stopped with an
    error or executed other transactions, and ServerError if the applier needs a plugin that the server has not loaded.
    """
    words = ChannelStatements.of(flavour)
    replicated = _slave_position(session) if flavour is Flavour.MARIADB else None
    session.query(words.change, (source.file, source.start, logs.file(1).name, source.start))
    for stop in source.stops:
        _apply_to_stop(session, words, logs, stop)
    session.query(words.start)
    while True:
        progress = status(session, words)
        on_bytes(_replayed_bytes(source.sizes, progress))
        if not progress.is_running:
            raise _stopped_error(progress.error)
        if _is_finished(session, flavour, source, progress):
            break
        time.sleep(_POLL_SECONDS)
    session.query(words.stop)
    session.query(words.reset)
    if replicated is not None:
        # The replay may have added domains.
        after = _slave_position(session)
        kept = GtidPosition({domain: head for domain, head in after.heads.items() if domain in replicated.heads})
        if kept != after:
            session.query("SET GLOBAL gtid_slave_pos = %s", (str(kept),))
    check_executed(session, flavour, source.gtids)


def _stopped_error(error: str) -> ZsnapdbError:
    """Return the error for a stopped applier.

    For a missing plugin, the error is a ServerError, because the plugin's absence does not lead to a wrong result.
    """
    message = f"the replay stopped: {error or 'see the error log'}"
    hint = plugin_hint(error)
    if hint:
        return ServerError(message, hint=hint)
    return ConsistencyError(message, hint="see the error log of the server")


def _replayed_bytes(sizes: Sequence[int], progress: ApplierStatus) -> int:
    before = min(max(progress.number - 1, 0), len(sizes))
    return sum(sizes[:before]) + (min(progress.offset, sizes[before]) if before < len(sizes) else 0)


def _is_finished(session: Session, flavour: Flavour, source: ReplayInput, progress: ApplierStatus) -> bool:
    if source.gtids is not None:
        return progress.has_read_all and contains(executed(session, flavour), source.gtids)
    # The server adds a relay log after the given relay logs, and reads it only after these have been applied.
    return progress.has_read_all and progress.number > len(source.sizes)


def check_executed(session: Session, flavour: Flavour, expected: Gtids | None) -> None:
    """Raise ConsistencyError if the server did not execute exactly `expected`. If `expected` is None, do not check."""
    if expected is None:
        return
    actual = executed(session, flavour)
    if actual != expected:
        raise ConsistencyError(
            f"the server has executed {actual}; expected {expected}",
            hint="the result is not the requested state; report this",
        )


def _slave_position(session: Session) -> GtidPosition:
    return GtidPosition.parse(str(session.value("SELECT @@GLOBAL.gtid_slave_pos")))


_ENDING_SECONDS = 60.0


@dataclass
class PacedReplay:
    """A running replay. A thread with its own session records the progress, until the replay stops or fails."""

    words: ChannelStatements
    session: Session
    began: float
    samples: list[AppliedSample] = field(default_factory=list)
    error: str = ""
    stopped: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None

    @classmethod
    def start(
        cls,
        open_session: Callable[[], Session],
        flavour: Flavour,
        logs: RelayLogs,
        source: ReplayInput,
        delay: int,
        workers: int,
    ) -> PacedReplay:
        """Start to apply the relay logs. Each event is applied `delay` seconds after its original time.

        The relay logs are kept.
        """
        words = ChannelStatements.of(flavour)
        with open_session() as session:
            session.query(words.change_paced, (source.file, source.start, logs.file(1).name, source.start, delay))
            for statement in paced_settings(flavour, workers):
                session.query(statement)
            session.query(words.start)
        running = cls(words, open_session(), time.monotonic())
        running.thread = threading.Thread(target=running._watch, daemon=True)
        running.thread.start()
        return running

    @property
    def seconds(self) -> float:
        """Return the seconds since the replay started."""
        return time.monotonic() - self.began

    def _watch(self) -> None:
        while not self.stopped.wait(_POLL_SECONDS):
            try:
                seen = status(self.session, self.words)
            except ServerError as error:
                self.error = error.message
                return
            self.samples.append(AppliedSample(self.seconds, seen.number, seen.offset))
            if not seen.is_running:
                self.error = seen.error or "the server stopped it"
                return

    def end(self) -> None:
        """Stop the replay after the transaction that is being applied. Afterwards `samples` and `error` are final.

        The last sample is taken during this call and includes everything that was applied. If the thread has not
        stopped after 60 s, this call does not wait longer for it. An error during the stop is stored in `error`.
        """
        ended = self.seconds
        self.stopped.set()
        if self.thread is not None:
            self.thread.join(_ENDING_SECONDS)
        try:
            with self.session as session:
                session.query(self.words.stop)
                if not self.error:
                    last = status(session, self.words)
                    self.samples.append(AppliedSample(ended, last.number, last.offset))
        except ServerError as error:
            self.error = self.error or f"it did not stop after the migration: {error.message}"
