"""Checks from a server's state, space, unlogged changes and container whether it can be backed up now. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from zsnapdb.base.errors import PreflightError
from zsnapdb.base.quantities import size
from zsnapdb.planning.backup.lock_strategy import LockChoice, has_flawed_row_versions, unsafe_engines
from zsnapdb.planning.backup.placement import MountedFilesystem, Placement, mount_of
from zsnapdb.planning.schema_content import rows_not_restored
from zsnapdb.planning.server_facts import ServerFacts
from zsnapdb.planning.server_family import family
from zsnapdb.planning.server_space import shows_use

_MOST_NAMED = 8
_OFF = re.compile(r"\bsql_log_bin`?\s*:?=\s*(0|off|false)\b", re.IGNORECASE)
_FORMAT = re.compile(r"\bbinlog_format`?\s*:?=\s*['\"]?statement\b", re.IGNORECASE)


@dataclass(frozen=True)
class UnloggedChanges:
    """Changes that a replay of binlogs does not restore exactly, with the reason and the fix for them."""

    missing: str
    reason: str
    hint: str

    @property
    def sentence(self) -> str:
        return f"{self.missing} ({self.reason})"


def unlogged_changes(facts: ServerFacts) -> tuple[UnloggedChanges, ...]:
    """Return the changes that a replay of the server's binlogs does not restore exactly.

    An ordinary server has none.
    """
    if not facts.has_binlog:
        return ()
    return (*_filtered(facts), *_by_policy(facts), *_applied(facts))


def _filtered(facts: ServerFacts) -> Iterator[UnloggedChanges]:
    if facts.binlog_do:
        left = [schema for schema in facts.schemas if schema not in facts.binlog_do]
        others = _names(left) if left else "other schemas"
        yield UnloggedChanges(
            f"the binlog leaves out the changes of {others}, and of the accounts",
            f"binlog_do_db = {', '.join(facts.binlog_do)}",
            "remove binlog_do_db; what a replay must not apply is left out when it is restored",
        )
    elif facts.binlog_ignore:
        yield UnloggedChanges(
            f"the binlog leaves out the changes of {_names(facts.binlog_ignore)}",
            "binlog_ignore_db",
            "remove binlog_ignore_db; what a replay must not apply is left out when it is restored",
        )


def _by_policy(facts: ServerFacts) -> Iterator[UnloggedChanges]:
    if facts.variables.get("sql_log_bin", "ON").upper() in ("OFF", "0"):
        yield UnloggedChanges("the binlog leaves out all changes", "sql_log_bin = OFF", "SET GLOBAL sql_log_bin = ON")
    if _OFF.search(facts.variables.get("init_connect", "")):
        yield UnloggedChanges(
            "the binlog leaves out the changes of all accounts without administrative rights",
            "init_connect turns sql_log_bin off",
            "remove sql_log_bin from init_connect",
        )
    name = ""
    if facts.variables.get("binlog_format", "ROW").upper() == "STATEMENT":
        name = "binlog_format = STATEMENT"
    elif _FORMAT.search(facts.variables.get("init_connect", "")):
        name = "init_connect sets binlog_format to STATEMENT"
    if name:
        missing = "the binlog has statements and not rows: replaying it may give other rows than the server had"
        yield UnloggedChanges(missing, name, "set binlog_format = ROW")


def _applied(facts: ServerFacts) -> Iterator[UnloggedChanges]:
    """Yield changes of the source that a replica or cluster node does not apply, or applies without logging them."""
    option = "log_replica_updates" if "log_replica_updates" in facts.variables else "log_slave_updates"
    is_off = facts.variables.get(option, "ON").upper() in ("OFF", "0")
    sources = [f"{channel.host}:{channel.port}" for channel in facts.channels]
    if facts.variables.get("wsrep_on", "OFF").upper() in ("ON", "1"):
        sources.append("the other nodes of its cluster")
    if is_off and sources:
        yield UnloggedChanges(
            f"the binlog leaves out the changes that come from {', '.join(sources)}",
            f"{option} = OFF",
            f"set {option} = ON",
        )
    for channel in facts.channels:
        if channel.filters:
            source = f"{channel.host}:{channel.port}"
            yield UnloggedChanges(
                f"the replica does not have all changes of {source}, and no backup of it has them",
                ", ".join(channel.filters),
                "back up the source, or remove the replication filters",
            )


def _names(schemas: Sequence[str]) -> str:
    more = len(schemas) - _MOST_NAMED
    return ", ".join(schemas[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


class Severity(StrEnum):
    """The severity of a finding.

    OK means no problem, WARNING means that a backup runs and reports the problem, and UNFIT means that a backup is
    refused.
    """

    OK = "ok"
    WARNING = "warning"
    UNFIT = "unfit"


@dataclass(frozen=True)
class PropertyChange:
    """A new value for a property of a dataset."""

    dataset: str
    name: str
    value: str

    @property
    def command(self) -> str:
        return f"zfs set {self.name}={self.value} {self.dataset}"


@dataclass(frozen=True)
class FitnessFinding:
    """The result of a check, with its subject, a text and a hint. `rule` is the id of a rule in `planning/advice`.

    `change` repairs the problem. It is safe, because it changes no existing data and uses no additional memory.
    """

    severity: Severity
    what: str
    detail: str
    hint: str = ""
    rule: str = ""
    change: PropertyChange | None = None


@dataclass(frozen=True)
class BlockSizes:
    """The real block sizes of InnoDB data files (st_blksize, bytes), each with the number of files and an example."""

    page_size: int
    counts: Mapping[int, int]
    examples: Mapping[int, str]


_WITHOUT_ROWS = "after a restore, load these rows again from where they come from"
_ATOMIC_REWRITE = (2, 2)
"""The first OpenZFS release in which a write across several records is one transaction (dmu_tx, commit b0cbc1aa9a)."""


def ok(what: str, detail: str) -> FitnessFinding:
    """Return a finding that reports no problem."""
    return FitnessFinding(Severity.OK, what, detail)


def warning(what: str, detail: str, hint: str = "") -> FitnessFinding:
    """Return a warning."""
    return FitnessFinding(Severity.WARNING, what, detail, hint)


def unfit(what: str, detail: str, hint: str) -> FitnessFinding:
    """Return a finding that prevents every backup."""
    return FitnessFinding(Severity.UNFIT, what, detail, hint)


def objection(findings: Iterable[FitnessFinding]) -> PreflightError | None:
    """Return an error that lists every finding that prevents a backup; None if there is no such finding."""
    reasons = [finding for finding in findings if finding.severity is Severity.UNFIT]
    if not reasons:
        return None
    hints = dict.fromkeys(finding.hint for finding in reasons if finding.hint)
    return PreflightError("; ".join(finding.detail for finding in reasons), hint="; ".join(hints))


def require_fit(findings: Iterable[FitnessFinding]) -> None:
    """Raise an error that lists all findings that prevent a backup, if any."""
    error = objection(findings)
    if error is not None:
        raise error


def warnings(findings: Iterable[FitnessFinding]) -> tuple[str, ...]:
    """Return the warnings as texts."""
    return tuple(f"{f.detail}" + (f" ({f.hint})" if f.hint else "") for f in findings if f.severity is Severity.WARNING)


def judge_server(
    facts: ServerFacts, address: str, *, forced: bool, stops_applier: bool = False
) -> list[FitnessFinding]:
    """Return the findings about the server itself.

    `forced` is set if the setting `lock.strategy` names a lock strategy. `stops_applier` is the setting
    `lock.stop_applier`.
    """
    findings = [ok("server", facts.describe())]
    listing = ", ".join(f"{count} {name}" for name, count in sorted(facts.engines.items())) or "none"
    if not facts.sees_all_tables and not forced:
        detail = f"{address} may not read all tables, so tables of other engines than InnoDB cannot be ruled out"
        hint = "grant SELECT ON *.* to the account (`zsnapdb grants`), or force lock.strategy"
        findings.append(unfit("tables", detail, hint))
    else:
        findings.append(ok("tables", listing + ("" if unsafe_engines(facts) else ", all crash-safe")))
    rest = (judge_durability(facts), _binlog(facts), _replication(facts, stops_applier), _leftovers(facts))
    return [*findings, *(finding for part in rest for finding in part)]


def judge_durability(facts: ServerFacts) -> list[FitnessFinding]:
    """Return the findings about the durability of commits."""
    flush, sync = facts.variables.get("innodb_flush_log_at_trx_commit", "1"), facts.variables.get("sync_binlog", "1")
    if flush == "0":
        detail = (
            "innodb_flush_log_at_trx_commit = 0: the binlog can be ahead of the tables, so a snapshot may lack"
            " transactions it claims to hold"
        )
        hint = "set it to 2: commits are still not synced one by one, and a snapshot is exact"
        return [unfit("redo log", detail, hint)]
    if facts.redo_disabled:
        detail = "the redo log is disabled: files snapshotted now cannot be recovered"
        return [unfit("redo log", detail, "ALTER INSTANCE ENABLE INNODB REDO_LOG")]
    settings = f"innodb_flush_log_at_trx_commit = {flush}, sync_binlog = {sync}"
    return [ok("redo log", f"{settings}: every commit is written before it is acknowledged")]


def _binlog(facts: ServerFacts) -> list[FitnessFinding]:
    if not facts.has_binlog:
        detail = "the binlog is off: backups have no position and no point in time between them can be restored"
        return [warning("binlog", detail, "set log_bin")]
    if facts.variables.get("binlog_storage_engine", "").lower() == "innodb":
        detail = "binlog_storage_engine = innodb: the binlog has no files from which a position can be read"
        return [unfit("binlog", detail, "use file-based binlogs")]
    text = f"{facts.variables.get('log_bin_basename', 'on')}, format {facts.variables.get('binlog_format', 'ROW')}"
    # If a restore goes to a point between two backups, it does not include these changes.
    found = [warning("binlog", changes.sentence, changes.hint) for changes in unlogged_changes(facts)]
    if not facts.has_gtids:
        detail = f"{text}, without GTIDs: a restore cannot compare its transactions with the recorded ones"
        found.insert(0, warning("binlog", detail, "set gtid_mode = ON"))
    return found or [ok("binlog", text)]


def _replication(facts: ServerFacts, stops_applier: bool) -> list[FitnessFinding]:
    if not facts.channels:
        return []
    listing = ", ".join(
        f"{c.name or 'default'} from {c.host}:{c.port}, applier {'runs' if c.applying else 'stopped'}"
        for c in facts.channels
    )
    option = "log_replica_updates" if "log_replica_updates" in facts.variables else "log_slave_updates"
    if family(facts.flavour).position_needs_replica_log and facts.has_binlog and facts.variables.get(option) == "OFF":
        detail = (
            "the server is a replica that does not write what it applies to its own binlog, so a snapshot's position"
            " cannot be proved"
        )
        return [unfit("replica", detail, f"set {option} = ON, or back up another server")]
    workers = facts.variables.get("replica_parallel_workers", facts.variables.get("slave_parallel_workers", "0"))
    keeps_order = facts.variables.get(
        "replica_preserve_commit_order", facts.variables.get("slave_preserve_commit_order", "ON")
    )
    has_gaps = family(facts.flavour).applier_may_leave_gaps and int(workers) > 1 and keeps_order in ("OFF", "0")
    if stops_applier and has_gaps:
        # Refman 8.4, "replica_preserve_commit_order".
        detail = (
            f"lock.stop_applier: {workers} workers that do not preserve the commit order may stop with gaps between"
            " them"
        )
        return [unfit("replica", detail, "set replica_preserve_commit_order = ON, or leave stop_applier out")]
    return [ok("replica", listing)]


def _leftovers(facts: ServerFacts) -> Iterator[FitnessFinding]:
    """Yield findings about data that a restore omits, and about restored objects that the user must handle."""
    yield from (warning("rows", sentence, _WITHOUT_ROWS) for sentence in rows_not_restored(facts.engines))
    if facts.prepared_xa:
        detail = (
            f"{facts.prepared_xa} external XA transaction(s) in prepared state: they come back after a restore and hold"
            " their locks"
        )
        yield warning("xa", detail, "XA RECOVER shows them; commit or roll them back there")
    elif facts.prepared_xa is None:
        yield warning(
            "xa", "the account may not list prepared XA transactions", "grant XA_RECOVER_ADMIN (`zsnapdb grants`)"
        )
    if has_flawed_row_versions(facts):
        yield warning(
            "row versions",
            f"{facts.row_versions} table(s) were changed by INSTANT ADD or DROP COLUMN, and crash recovery of such"
            f" tables is unsound in {facts.version}",
            "OPTIMIZE TABLE them, and upgrade to 8.0.32 or newer",
        )


def judge_lock(choice: LockChoice) -> FitnessFinding:
    """Return the finding about the chosen lock."""
    detail = f"{choice.describe()}; while the lock is held, these wait: {choice.lock.waits}"
    if choice.lock.writers_wait:
        return warning("lock", detail, "convert the tables to InnoDB, so that no write waits")
    return ok("lock", detail)


def judge_placement(
    instance: str, placement: Placement, volumes: Mapping[str, str], no_copy: Sequence[str]
) -> list[FitnessFinding]:
    """Return the findings about the location of the server's files.

    `no_copy` contains the reasons why no server could start on a copy of the files.
    """
    listing = ", ".join(f"{role} = {dataset}" for role, dataset in sorted(volumes.items()))
    if placement.objections:
        text = f"instance {instance} cannot be snapshotted as one: {'; '.join(placement.objections)}"
        hint = "name every dataset the server writes to under volumes, in one pool, or move the files"
        return [unfit("paths", text, hint)]
    if no_copy:
        text = f"no backup of instance {instance} could be restored: {'; '.join(no_copy)}"
        return [unfit("paths", text, "move these files into the data directory; then run `zsnapdb doctor`")]
    return [ok("paths", f"{len(placement.volume_of)} paths, all on {listing}")]


def repairs_torn_pages(facts: ServerFacts) -> bool:
    """Return whether crash recovery repairs a partly written page.

    With DETECT_ONLY (MySQL 8.0.30+), recovery detects such a page but does not repair it.
    """
    return facts.variables.get("innodb_doublewrite", "ON").upper() not in ("OFF", "0", "DETECT_ONLY")


def judge_blocks(blocks: BlockSizes, *, doublewrite: bool, zfs_release: tuple[int, ...]) -> list[FitnessFinding]:
    """Compare the real block sizes of the files with the server's page size, and return findings about differences.

    ZFS before 2.2 may split the write of a page that spans several records, so a snapshot can tear the page. Without
    doublewrite, recovery does not repair such a page.
    """
    total = sum(blocks.counts.values())
    if not total:
        return []
    page = blocks.page_size
    smaller = sum(count for size, count in blocks.counts.items() if size < page)
    larger = {size: count for size, count in sorted(blocks.counts.items()) if size > page}
    same = blocks.counts.get(page, 0)
    text = f"{same} of {total} data files have blocks of the page size, {page // 1024}K"
    if smaller and not doublewrite and zfs_release < _ATOMIC_REWRITE:
        text = (
            f"{smaller} data file(s) have blocks smaller than a page, doublewrite is off, and this OpenZFS splits such"
            " writes: a snapshot can hold torn pages"
        )
        hint = "turn innodb_doublewrite on, or rewrite the files on a dataset with recordsize = innodb_page_size"
        return [unfit("blocks", text, hint)]
    if larger:
        listing = ", ".join(
            f"{count} of {size // 1024}K such as {blocks.examples[size]}" for size, count in larger.items()
        )
        hint = (
            "every page written rewrites a whole block; recordsize is fixed when a file is made: set it, then rebuild"
            " the tables"
        )
        return [warning("blocks", f"{text}; larger ones: {listing}", hint)]
    return [ok("blocks", text + (f", {smaller} smaller ones" if smaller else ""))]


@dataclass(frozen=True)
class Cover:
    """A mount of the file system `above` at the path `point`. It hides the files of the file system `below` there."""

    above: str
    below: str
    point: str


@dataclass(frozen=True)
class OtherView:
    """A folder of a server whose path leads to a different folder on this host, or does not exist on it.

    `setting` is the setting that contains the folder, `path` is the folder's path for the server, and `pid` is the
    server's process on this host. `here` is the folder's path on this host, or empty if no path leads to it. `cover` is
    the mount that hides the folder; None if the server runs in a container.
    """

    setting: str
    path: str
    pid: int
    here: str
    cover: Cover | None = None


def judge(view: OtherView) -> FitnessFinding:
    """Return the finding that the server's paths would lead to different files on this host."""
    if view.cover is not None:
        point, above = view.cover.point, view.cover.above
        return unfit(
            "paths",
            f"the server (process {view.pid}) has its {view.setting} = {view.path} on {view.cover.below}, but {above}"
            f" was mounted over it at {point}: this host sees other files there",
            f"if nobody needs {above} there, unmount it: `umount {shlex.quote(point)}`; a dataset stays unmounted after"
            f" `zfs set canmount=noauto {shlex.quote(above)}`",
        )
    place = f"this host has that folder at {view.here}" if view.here else "this host has that folder nowhere"
    detail = (
        f"the server (process {view.pid}) runs in a container or mount namespace with other paths than this host:"
        f" its {view.setting} = {view.path}, and {place}"
    )
    if not view.here:
        return unfit("paths", detail, "keep the server's files on a dataset that this host mounts; see containers.md")
    hint = f"make {view.path} a symbolic link of this host to {view.here}; other ways are in containers.md"
    return unfit("paths", detail, hint)


def judge_state(
    folders: Iterable[str], mounts: Sequence[MountedFilesystem], *, is_container: bool
) -> list[FitnessFinding]:
    """Return a finding if one of the server's folders is in the root file system of a container.

    If this host is not a container, return no finding.
    """
    if not is_container:
        return []
    lost = [folder for folder in folders if (mount := mount_of(folder, mounts)) is None or mount.path == "/"]
    if not lost:
        return []
    options = " ".join(f"--volume {folder}:{folder}:rshared" for folder in lost)
    text = f"records, journals and locks in {', '.join(lost)} would be lost with this container"
    return [unfit("container", text, f"mount the folders of the host: `{options}`")]


POOL_FLOOR = 4 << 20
"""The number of bytes that must be free in a pool.

Snapshots, their properties, holds and bookmarks take a few blocks each.
"""
LOW_PERCENT = 5
"""A warning is given if the free space of a dataset is below this percentage."""


@dataclass(frozen=True)
class DatasetSpace:
    """The space properties of a dataset in bytes (zfsprops(7)). A limit of 0 means that the limit is not set."""

    name: str
    available: int
    used: int
    written: int
    used_by_refreservation: int
    quota: int
    refquota: int
    refreservation: int


def judge_space(pool: DatasetSpace, volumes: Sequence[DatasetSpace]) -> list[FitnessFinding]:
    """Return the findings about the space of the pool's root dataset and of the volumes in it."""
    if pool.available < POOL_FLOOR:
        return [
            unfit(
                "space",
                f"the pool {pool.name} has {size(pool.available)} free, a snapshot needs {size(POOL_FLOOR)}:"
                " `zfs snapshot` would fail, and so may the server",
                f"free space in {pool.name} without `zsnapdb prune` ({shows_use(pool.name)})",
            )
        ]
    findings = [finding for volume in volumes for finding in _judge_volume(pool, volume)]
    low = min(volumes, key=lambda volume: volume.available, default=pool)
    return findings or [ok("space", f"{low.name} has {size(low.available)} free, {pool.name} {size(pool.available)}")]


def _judge_volume(pool: DatasetSpace, volume: DatasetSpace) -> list[FitnessFinding]:
    reserved = min(volume.written, volume.refreservation)
    outside = max(volume.available - volume.used_by_refreservation, pool.available if volume.refquota else 0)
    if reserved > outside:
        return [
            warning(
                "space",
                f"{volume.name} has a refreservation of {size(volume.refreservation)}, so a snapshot needs"
                f" {size(reserved)} outside of it, and {size(outside)} are free there: `zfs snapshot` may fail",
                f"lower the reservation (`zfs set refreservation=none {volume.name}`), or free space in {pool.name}",
            )
        ]
    whole = volume.used + volume.available
    if volume.available * 100 >= whole * LOW_PERCENT:
        return []
    limit, hint = _limit_of(pool, volume)
    return [
        warning(
            "space",
            f"{volume.name} has {size(volume.available)} free of {size(whole)}, because of {limit}: a snapshot keeps"
            " what the server overwrites, and the server may find no space",
            hint,
        )
    ]


def _limit_of(pool: DatasetSpace, volume: DatasetSpace) -> tuple[str, str]:
    """Return a text that names the limit for the volume's free space, and a hint on how to raise it."""
    if volume.refquota and volume.available < pool.available:
        return f"its refquota of {size(volume.refquota)}", f"raise it: `zfs set refquota=… {volume.name}`"
    if volume.quota and volume.available < pool.available:
        return (
            f"its quota of {size(volume.quota)}",
            f"raise it (`zfs set quota=… {volume.name}`), or keep fewer local snapshots (`local` of the policy)",
        )
    if volume.available < pool.available:
        return "a quota of a dataset above it", f"see `zfs get -r quota {pool.name}`"
    return f"the pool {pool.name}", f"free space: `zfs list -o space -r {pool.name}`; keep fewer local snapshots"
