"""Executes the replay steps of a restore.

The restored server applies the archived binlogs as relay logs, or a client applies them in one session. During the
replay no other client can connect to the server.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from posixpath import join

from pydantic import SecretStr

from zsnapdb.base import safe_open
from zsnapdb.base.domain_types import Progress, parse_gtids
from zsnapdb.base.errors import ConsistencyError, DamagedError, PreflightError
from zsnapdb.base.gtid import Gtids
from zsnapdb.jobs.base.events import Events, undone_on_error
from zsnapdb.jobs.base.host import fresh_password, fresh_server_id
from zsnapdb.jobs.host.binlog_spans import LocalBinlogs, check_content
from zsnapdb.jobs.host.server_copy import client_file
from zsnapdb.jobs.restore.backup_selection import client_programs
from zsnapdb.jobs.restore.offline_repository import archive_of
from zsnapdb.jobs.restore.startup_steps import ServerWork, be_mounted, snapshot_step, take_back, was_kept
from zsnapdb.mysql.binlog import foreign_keys
from zsnapdb.mysql.binlog.ambiguous_text import refuse_ambiguous_text
from zsnapdb.mysql.binlog.created_tables import CreatedTables
from zsnapdb.mysql.process import programs
from zsnapdb.mysql.replication import replay as replaying
from zsnapdb.mysql.replication import scheduled_events
from zsnapdb.mysql.replication.replay import RelayLogs, ReplayInput
from zsnapdb.mysql.session import Session
from zsnapdb.mysql.variables import global_variables
from zsnapdb.planning.binlog.created_tables import (
    OTHER_POINT,
    CreatedTable,
    Defaults,
    EngineStop,
    RecordedTable,
    contradiction,
    listing,
    plan_engines,
)
from zsnapdb.planning.binlog.event_states import EventStates, follow
from zsnapdb.planning.restore.steps import LogPart, Recover, Replay, Replayer, ResumedRun
from zsnapdb.planning.server_copy.copy_options import LoginAccess, binlog_paths
from zsnapdb.planning.server_family import family
from zsnapdb.planning.sql_quoting import IDENTITY, only_on_server
from zsnapdb.repository.binlog_archive import BinlogArchive

_LONGEST_REPLAY = 30 * 86_400.0
"""The time limit in seconds for a replay by a client.

No other session can block the client. So a client that takes longer than this is stuck.
"""
_SCRATCH = Path("/var/tmp")  # noqa: S108 - a new folder is made in it
"""The parent folder, on disk, of the folder that a replay creates for files of LOAD DATA.

Only root may enter the created folder.
"""
_Records = Mapping[tuple[int, int], RecordedTable]
"""The archive's records of tables that were created without ENGINE, by relay log and offset of the statement."""


def replay(work: ServerWork, step: Replay) -> None:
    """Fetch the step's binlogs, apply them, and snapshot the volumes.

    The datasets are first rolled back to the snapshot of the previous step. The call does nothing if an interrupted run
    finished this step without recording it.
    """
    be_mounted(work)
    work.copy.process().kill_all()
    if was_kept(work, step.name):
        return
    names = [other.name for other in work.plan.steps if isinstance(other, (Recover, Replay, ResumedRun))]
    take_back(work, f"zsnapdb-restore-{names[names.index(step.name) - 1]}")
    paths = binlog_paths(work.plan.variables, "relay_log")
    base = paths[0] if paths is not None else join(work.plan.variables["datadir"], "zsnapdb-relay")
    logs = RelayLogs(Path(work.copy.paths.translate(base)))
    logs.remove()
    archive = archive_of(work.instance, work.repository, only={part.file: part.size for part in step.logs})
    local = LocalBinlogs.of(work.plan.variables, work.plan.key_files)
    records = fetch_logs(archive, local, step, logs, work.events)
    gtids = parse_gtids(work.plan.flavour, step.gtids) if step.gtids is not None else None
    if step.by == "client":
        _by_client(work, step, logs, gtids, records)
    else:
        _by_applier(work, step, logs, gtids, records)
    logs.remove()
    snapshot_step(work, step.name)


def _read(step: Replay, logs: RelayLogs, events: EventStates) -> tuple[tuple[int, CreatedTable], ...]:
    """Return the tables that were created without ENGINE, each with the number of its relay log.

    Also add the states of the scheduled events at the end of these binlogs to `events`. Call this function before the
    replay, because the applier removes the relay logs.
    """
    made = CreatedTables(partial(follow, events))
    for number, part in enumerate(step.logs, 1):
        # Only the server can read an encrypted relay log.
        with safe_open.open_to_read(logs.file(number)) as file, contextlib.suppress(PreflightError):
            made.read(file, part.file, part.start, number)
    return tuple(made.numbered())


def _engine_stops(
    work: ServerWork, made: Iterable[tuple[int, CreatedTable]], records: _Records, start: Defaults, *, by: Replayer
) -> tuple[EngineStop, ...]:
    """Return the positions at which the replay must change the default engine. The replay starts with `start`.

    Warn about tables whose engine is uncertain.

    Raises:
        ConsistencyError: the replay would create a table with a different engine or character set than the source, and
            the engine or character set of the source is not recorded.
    """
    planned = plan_engines(made, records, start)
    refused = contradiction(planned, start, by)
    if refused is not None:
        raise ConsistencyError(refused, hint=OTHER_POINT)
    if planned.unknown:
        work.events.warn(
            f"the storage engine of {listing(planned.unknown)} is not recorded, because ENGINE was omitted: the replay"
            f" uses {start.engine}, the source's default at the backup"
        )
    if planned.bare:
        work.events.warn(
            f"the source logged {listing(planned.bare)} without the options of the table (sql_mode ANSI): engine,"
            " character set, row format and comment can differ from the source's"
        )
    return planned.stops


def _by_applier(work: ServerWork, step: Replay, logs: RelayLogs, gtids: Gtids | None, records: _Records) -> None:
    logs.take(len(step.logs), work.instance.settings.server.user)
    sizes = tuple(logs.file(number).stat().st_size for number in range(1, len(step.logs) + 1))
    options = replaying.options(work.plan.flavour, work.settings.restore.workers or len(os.sched_getaffinity(0)))
    base = () if binlog_paths(work.plan.variables, "relay_log") is not None else (f"relay_log={logs.base}",)
    with served(work, port=None, server_id=fresh_server_id(), last=(*base, *options)) as session:
        before = scheduled_events.states_of(session)
        after = dict(before)
        stops = _engine_stops(work, _read(step, logs, after), records, replaying.defaults(session), by=step.by)
        source = ReplayInput(sizes, step.logs[0].start, step.logs[0].file, gtids, stops)
        replaying.replay(
            session,
            work.plan.flavour,
            logs,
            source,
            lambda done: work.events.progress(Progress(f"replay {step.name}", done, sum(sizes))),
        )
        _give_events_back(work, session, before, after)
        replaying.make_durable(session)


def _give_events_back(work: ServerWork, session: Session, before: EventStates, after: EventStates) -> None:
    """Set the replayed scheduled events to the states that they had on the source.

    The applier disables the events that it creates or alters. Warn about an event if no statement contains its state.
    """
    unknown = scheduled_events.give_back(session, work.plan.flavour, work.plan.server_id, before, after)
    if unknown:
        work.events.warn(
            f"{len(unknown)} event(s) were made or altered after the backup, and the replay left them disabled;"
            f" to enable those that were enabled at the source, run: {'; '.join(sorted(unknown))}"
        )


def _by_client(work: ServerWork, step: Replay, logs: RelayLogs, gtids: Gtids | None, records: _Records) -> None:
    tool, client = client_programs(work.instance, work.plan.flavour, work.plan.server_version)
    files = [logs.file(number) for number in range(1, len(step.logs) + 1)]
    for part, file in zip(step.logs, files, strict=True):
        refuse_ambiguous_text(file, part.file)
    password, options = fresh_password(), replaying.CLIENT_OPTIONS
    # The server writes its server_id into each new event. An applier would skip events with that id, but no applier is
    # used here.
    with served(work, port=None, server_id=work.plan.server_id, last=options, password=password) as session:
        events = scheduled_events.scheduled_events(session)
        # With a client, there is no way to set the collation of a table that a replayed statement creates.
        records = {place: replace(record, collation=None) for place, record in records.items()}
        stops = _engine_stops(work, _read(step, logs, {}), records, replaying.defaults(session), by=step.by)
        here = only_on_server(global_variables(session, IDENTITY))
        with (
            client_file(session.address, password, here) as login,
            tempfile.TemporaryDirectory(dir=_SCRATCH) as scratch,
        ):
            feeds = replaying.client_feeds(tool, files, step.logs[0].start, Path(scratch), stops)
            programs.feed(feeds, replaying.client_argv(client, login), timeout=_LONGEST_REPLAY)
        replaying.check_executed(session, work.plan.flavour, gtids)
        account = f"{replaying.ACCOUNT}@localhost"
        nobodys = scheduled_events.give_back_definers(session, work.plan.flavour, account, events)
        if nobodys:
            work.events.warn(
                f"the definer of {len(nobodys)} event(s) is not recorded, because they were created and altered"
                f" after the backup: {', '.join(sorted(nobodys))};"
                " run ALTER DEFINER = 'USER'@'HOST' EVENT ... ENABLE for each"
            )
        replaying.make_durable(session)


def fetch_logs(
    archive: BinlogArchive, local: LocalBinlogs, step: Replay, logs: RelayLogs, events: Events
) -> Mapping[tuple[int, int], RecordedTable]:
    """Write the binlogs as relay logs, and truncate each of them at its stop position.

    The binlogs come from this host if the plan says so, else from the store. Row events are changed so that the applier
    follows no foreign keys if the source logged all changed rows. Return the archive's records of tables that were
    created without ENGINE, keyed by relay log and statement offset.

    Raises:
        DamagedError: a binlog was removed, shortened or replaced since the replay was planned.
    """
    files = {(file.incarnation, file.name): file for file in archive.load().files}
    total, done = step.size, 0
    records: dict[tuple[int, int], RecordedTable] = {}
    for number, part in enumerate(step.logs, 1):
        file = files.get((part.incarnation, part.file))
        is_planned = (
            file is not None and part.fingerprint in ("", file.fingerprint) and part.description in ("", file.digest)
        )
        if file is None or file.end < part.size or not is_planned:
            raise DamagedError(
                f"the archived binlog {part.file} of incarnation {part.incarnation} was removed, cut or replaced after"
                " the replay was planned",
                hint="give a restore up with --abandon and start again; run any other command again",
            )
        path = logs.file(number)
        if not (part.is_local and local.copy(archive, file, path)):
            archive.fetch(file, path)
            with safe_open.open_to_read(path) as fetched:
                check_content(fetched, file)
        if part.stop is not None and part.stop < file.end:
            with safe_open.open_to_change(path) as out:
                out.truncate(part.stop)
        made = {table.offset: table.record for table in file.span.made}
        moved = _follow_no_keys(path, part, made) if family(file.flavour).follows_logged_keys else {}
        records |= {(number, moved.get(offset, offset)): record for offset, record in made.items()}
        done += part.size
        events.progress(Progress(f"fetch {part.file}", done, total))
    return records


def _follow_no_keys(relay_log: Path, part: LogPart, places: Iterable[int]) -> Mapping[int, int]:
    """Change the row events of a relay log so that an applier follows no foreign keys. Return the moved `places`."""
    changed = relay_log.with_name(f"{relay_log.name}.changed")
    with contextlib.ExitStack() as opened:
        file = opened.enter_context(safe_open.open_to_read(relay_log))
        moved = foreign_keys.write_changed(
            file, part.file, part.start, places, lambda: opened.enter_context(safe_open.create(changed))
        )
    if moved is None:
        return {}
    safe_open.replace(relay_log, changed)
    return moved


@contextlib.contextmanager
def served(
    work: ServerWork,
    *,
    port: int | None,
    server_id: int,
    last: Sequence[str] = (),
    stays: bool = False,
    connects: bool = False,
    reads: Sequence[Path] = (),
    password: SecretStr | None = None,
    finally_do: Callable[[Session], None] = lambda _session: None,
) -> Iterator[Session]:
    """Run the restored server during a `with` block, and yield a session of a temporary zsnapdb account.

    The statements that create the account are not written to a binlog. Access control is active, because a server
    without access control would load no plugins. If `stays` is set, the server keeps running after the block. If
    `connects` is set, the server may connect to other servers. The server may also read the files in `reads`.
    `finally_do` is called with the last session, after the account is dropped. If `password` is None, the account gets
    a new password.
    """
    copy = work.copy
    password = password or fresh_password()
    init_file = copy.write_init_file(replaying.account_sql(password))
    identity = copy.identity(server_id=server_id, port=port, access=LoginAccess.ACCOUNTS, init_file=str(init_file))
    process = copy.process()
    last = last if stays else (*copy.for_one_task, *last)
    with undone_on_error(process.kill):
        with copy.start(identity, replaying.ACCOUNT, password, last, connects=connects, reads=reads) as session:
            yield session
            replaying.drop_account(session)
            finally_do(session)
        safe_open.remove(init_file)
        if not stays:
            process.stop(timeout=max(600.0, work.instance.settings.server.start_timeout))
