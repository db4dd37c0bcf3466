"""Refuses to call something the newest if something newer was stored that cannot be used."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

from zsnapdb.base.errors import DamagedBackupError, DamagedError
from zsnapdb.base.model import parse_gtids
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.host.archived_binlogs import LocalBinlogs, point_of
from zsnapdb.jobs.record import host_record, put_back_record
from zsnapdb.jobs.record.host_record import StoredCheck
from zsnapdb.jobs.restore.without_store import is_stand_in
from zsnapdb.planning.backup.fitness import FitnessFinding, Severity, ok, warning
from zsnapdb.planning.binlog.route import follow
from zsnapdb.planning.binlog.window import leading
from zsnapdb.planning.chain import newest_without
from zsnapdb.planning.repository.writers import writers
from zsnapdb.planning.restore import newest, points
from zsnapdb.planning.restore.newest import UnusableArchive, UnusableBackup
from zsnapdb.planning.restore.points import RestoreRoute
from zsnapdb.planning.restore.targets import AtBackup, Latest, Target
from zsnapdb.repository.binlog_contents import Archive
from zsnapdb.repository.binlog_descriptions import ArchivedFile
from zsnapdb.repository.manifest import Manifest, is_of_server, server_source
from zsnapdb.repository.repository import Catalogue, Repository
from zsnapdb.repository.verifications import known_damage

_GONE = "this host stored it, and the repository lacks it: deleted, hidden, or rolled back"
_REWRITTEN = "its manifest is not the one that this host stored"
_FUTURE = "it is from the future by the clock of this host, and this host did not store it"


def catalogue_of(instance: Instance, repository: Repository, archive: Archive | None) -> tuple[Catalogue, StoredCheck]:
    """Return all backups, oldest first, and what the repository lacks of what this host stored; warn about that.

    While the store is unreachable, nothing is known to be missing.
    """
    catalogue = repository.catalogue(instance.name)
    if is_stand_in(repository):
        return catalogue, StoredCheck(taken_back=put_back_record.taken_back(instance, catalogue.manifests))
    checked = host_record.check(
        instance,
        repository,
        catalogue.manifests,
        catalogue.unread,
        archive,
        digests=catalogue.digests,
    )
    checked.warn(instance)
    return replace(catalogue, manifests=checked.ordered(catalogue.manifests)), checked


def unusable(catalogue: Catalogue, checked: StoredCheck) -> tuple[UnusableBackup, ...]:
    """Return the stored backups that cannot be used: their manifests are unreadable or gone."""
    unusable = [UnusableBackup(name, error.message) for name, error in catalogue.unreadable.items()]
    unusable += [UnusableBackup(name, _REWRITTEN) for name in checked.provenance.rewritten]
    unusable += [UnusableBackup(name, _FUTURE) for name in _newer_future(catalogue, checked)]
    for missing in checked.missing:
        known = missing.recorded
        if known is None or known.flavour is None or known.gtids is None:
            unusable.append(UnusableBackup(missing.backup_id, _GONE))
        else:
            gtids = parse_gtids(known.flavour, known.gtids)
            unusable.append(UnusableBackup(missing.backup_id, _GONE, known.server, gtids))
    return tuple(unusable)


def _newer_future(catalogue: Catalogue, checked: StoredCheck) -> list[str]:
    """Return the backups from the future that are not before another backup of the same pool, which decides order."""
    ids = [manifest.backup_id for manifest in catalogue.manifests]
    newest_present = max((number for number, name in enumerate(ids) if name not in checked.unchosen), default=-1)
    return [name for name in ids[newest_present + 1 :] if name in checked.doubtful_future]


def choosable(
    catalogue: Catalogue, checked: StoredCheck, target: Target, history: str | None = None
) -> tuple[Manifest, ...]:
    """Return the backups among which the target may choose: all for a named backup, else no foreign or future one.

    What a restore took back is not the newest state. A time, a GTID or the latest state of a named `history` may be.
    """
    if isinstance(target, AtBackup) and target.backup_id is not None:
        return catalogue.manifests
    but = checked.unchosen if newest.asks_for_newest(target) and history is None else checked.unbelieved
    return tuple(manifest for manifest in catalogue.manifests if manifest.backup_id not in but)


def refuse_without_any(catalogue: Catalogue, checked: StoredCheck, target: Target, requested: str) -> None:
    """Raise DamagedError if backups were stored and none of them can be used."""
    backups = unusable(catalogue, checked)
    if backups and not choosable(catalogue, checked, target) and newest.asks_for_newest(target):
        listed = [f"backup {item.backup_id}: {item.why}" for item in backups]
        raise newest.refusal(requested, "nothing", listed)
    if checked.taken_back and not choosable(catalogue, checked, target):
        raise newest.all_taken_back(requested, checked.taken_back)


def present_archive(
    instance: Instance,
    target: Target,
    candidates: Sequence[Manifest],
    archive: Archive | None,
    history: str | None = None,
) -> Archive | None:
    """Return the archive if its newest history is known to be production's present one; else None.

    It matters to `latest` alone. After a restore took production's place, the newest archived history may be the one
    that was left. It is the present one if a backup since then leads into it, or if production has its binlogs.
    HistoryError if it is not, and no backup was made since then, unless the target accepts an older state.
    """
    put_back = put_back_record.recorded(instance)
    if not isinstance(target, Latest) or history is not None or archive is None or put_back.last is None:
        return archive
    last = archive.files[-1] if archive.files else None
    since = [manifest for manifest in candidates if put_back.is_since(manifest)]
    if last is None or not candidates or _leads_into(last, since, archive):
        return archive
    server = server_source(candidates[-1]).server
    is_here = LocalBinlogs.of(server.variables, server.key_files).has(last)
    if is_here and (not target.accepts_older or _leads_into(last, candidates, archive)):
        return archive
    if not since and not target.accepts_older:
        raise newest.left_history(instance.name, put_back.last.restore_id, last.name, candidates[-1].backup_id)
    return None


def _leads_into(last: ArchivedFile, backups: Sequence[Manifest], archive: Archive) -> bool:
    """Whether the archived binlogs lead from these backups into the history of a file."""
    if not backups:
        return False
    points_here = [point_of(manifest) for manifest in backups]
    route = leading(points_here, lambda point: follow(point, archive.files, archive.state))
    return any(file.incarnation == last.incarnation for file in route.files)


def newest_backup(instance: Instance, repository: Repository, *, accepts_older: bool) -> str:
    """Return the id of the newest backup of a server whose manifest can be read.

    DamagedError if something newer was stored that cannot be used, unless the caller accepts an older backup; NotThere
    if there is no backup; PreflightError if the newest one is of another kind.
    """
    target, requested = AtBackup(None), "latest"
    catalogue, checked = catalogue_of(instance, repository, None)
    refuse_without_any(catalogue, checked, target, requested)
    present = choosable(catalogue, checked, target)
    if present:
        server_source(present[-1])
    servers = [manifest for manifest in present if is_of_server(manifest)]
    known = tuple(point_of(manifest) for manifest in of_one_server(instance, servers, checked, target))
    choice = points.choose(target, known, (), instance.host.now())
    for note in notes_on_newer(choice, catalogue, checked, requested, accepts_older=accepts_older):
        instance.events.warn(note)
    return choice.point.backup_id


def of_one_server(
    instance: Instance,
    manifests: Sequence[Manifest],
    checked: StoredCheck,
    target: Target,
    history: str | None = None,
) -> list[Manifest]:
    """Return the backups among which the newest is the newest state of one server.

    Several servers may have written under the name of the instance. This host's own server counts here. On another
    host, the server counts that is proved by GTIDs to have gone on from all others. HistoryError if there is none.
    The latest state of a named `history` is that of its server, so there all backups are returned.
    """
    is_named = history is not None and isinstance(target, Latest)
    known_writers = writers(manifests, instance.host.now())
    if len(known_writers) < 2 or is_named or not newest.asks_for_newest(target):
        return list(manifests)
    chosen = [writer for writer in known_writers if set(writer.backups) & set(checked.own)]
    if not chosen:
        ends = {manifest.backup_id: point_of(manifest) for manifest in manifests}
        chosen = list(newest.last_writers(known_writers, ends))
    if len(chosen) > 1 and not checked.own:
        raise newest.ambiguous(instance.name, chosen)
    names = {backup_id for writer in chosen for backup_id in writer.backups}
    return [manifest for manifest in manifests if manifest.backup_id in names]


def notes_beside(chosen: str, catalogue: Catalogue, checked: StoredCheck, target: Target) -> tuple[str, ...]:
    """Return what the plan says about newer backups than the chosen one: foreign ones, and what a restore left.

    For a time or a GTID it says only whether the chosen backup is of what a restore left.
    """
    ids = [manifest.backup_id for manifest in catalogue.manifests]
    if not newest.asks_for_newest(target) or chosen not in ids:
        why = checked.taken_back.get(chosen)
        return (f"backup {chosen} is of a history that production left: {why}",) if why is not None else ()
    unchosen, later = checked.provenance.unchosen, ids[ids.index(chosen) + 1 :]
    foreign = [name for name in later if name in unchosen]
    left = [name for name in later if name in checked.taken_back and name not in unchosen]
    return (
        *(
            f"newer, and foreign: {name}: {unchosen[name]}; name the id to use it, or adopt it (`zsnapdb adopt`)"
            for name in foreign
        ),
        *(f"newer, and taken back: {name}: {checked.taken_back[name]}; name the id to use it" for name in left),
    )


def notes_on_newer(
    choice: RestoreRoute,
    catalogue: Catalogue,
    checked: StoredCheck,
    requested: str,
    local: Sequence[Manifest] = (),
    *,
    accepts_older: bool,
) -> tuple[str, ...]:
    """Return what the plan says about newer states that cannot be used. `local` are local sets among its candidates.

    DamagedError names them, unless the caller accepts an older state.
    """
    beside = notes_beside(choice.point.backup_id, catalogue, checked, choice.target)
    if not newest.asks_for_newest(choice.target):
        return beside
    short = next((finding for finding in checked.findings if checked.archive and finding.is_archive), None)
    archive = UnusableArchive(short.text, checked.archive.last_commit) if short and checked.archive else None
    order = checked.order_with([*catalogue.manifests, *local]) if local else checked.order
    newer = newest.newer_than(choice, unusable(catalogue, checked), archive, order)
    if not newer:
        return beside
    if accepts_older:
        return (*(f"newer, and cannot be used: {text}" for text in newer), *beside)
    instead = f"backup {choice.point.backup_id}" + (" and the archived binlogs after it" if choice.files else "")
    error: DamagedError = newest.refusal(requested, instead, newer)
    raise error


DAMAGE = "damage"
"""The subject of the findings about known damage."""


def judge_chunks(instance: Instance, repository: Repository, manifest: Manifest) -> list[FitnessFinding]:
    """Return the finding that every chunk of a backup is in the repository with its size and its keys can be opened.

    One listing has the chunks and their sizes. DamagedError if a chunk is missing or has another size.
    """
    # A wrong key raises its error now and not after the download of the backups before.
    repository.ciphers(manifest)
    with naming_restorable(instance, repository, manifest.backup_id):
        for volume in manifest.volumes:
            stored = repository.chunks_of(manifest, volume.role)
            sizes = stored.sizes()
            for index, chunk in enumerate(volume.chunks, 1):
                key = stored.key(index)
                name = f"chunk {key}"
                if key not in sizes:
                    raise DamagedError(
                        f"{name} is missing",
                        hint="the object was removed after it was written; restore another backup, see `zsnapdb list`",
                    )
                if sizes[key] != chunk.stored_size:
                    raise DamagedError(
                        f"{name}: {sizes[key]} bytes are stored, the manifest says {chunk.stored_size}",
                        hint=(
                            "the object was changed or cut after it was written; restore another backup, see `zsnapdb"
                            " list`"
                        ),
                    )
    return [ok("backup", f"{manifest.backup_id}: all chunks exist with their sizes, and the keys can be opened")]


def judge_damage(instance: Instance, repository: Repository, backups: Sequence[str]) -> list[FitnessFinding]:
    """Return a warning for each known damage of this chain, which begins with the full backup.

    A restore tries it all the same: it proves every chunk itself, and what checks recorded may be out of date.
    """
    hint = "restore a backup that does not need it, see `zsnapdb list`; `zsnapdb verify --deep` checks again"
    damages = known_damage(repository, instance.name).of_chain(backups)
    return [warning(DAMAGE, damage.describe(), hint) for damage in damages]


def is_damaged(findings: Sequence[FitnessFinding]) -> bool:
    """Whether a finding says that the chain is known to be damaged."""
    return any(finding.what == DAMAGE and finding.severity is not Severity.OK for finding in findings)


@contextlib.contextmanager
def naming_restorable(instance: Instance, repository: Repository, damaged: str) -> Iterator[None]:
    """Add to an error about a damaged chunk the newest backup that can still be restored: one without `damaged`."""
    try:
        yield
    except DamagedError as error:
        known, checked = host_record.stored(instance, repository)
        restorable = newest_without(checked.provenance.trusted(known.backups), damaged, checked.unchosen)
        way = (
            f"the newest backup that does not need {damaged} is {restorable.backup_id}: restore that backup"
            if restorable
            else f"every backup needs {damaged}"
        )
        raise DamagedBackupError(
            error.message,
            hint=f"the object was changed, cut or removed after it was written; {way}",
            backup_id=damaged,
        ) from error
