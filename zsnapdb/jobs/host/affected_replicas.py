"""Records the replicas of a server before a restore replaces its data, and reports them until they are rebuilt.

Each instance has one record, which is a file in the state folder of the host. The record is written before the datasets
are exchanged. It is used only while the restored datasets are in place, because replicas need no rebuild after an
abandoned restore.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from zsnapdb.base import files
from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import PreflightError, ServerError, ZsnapdbError
from zsnapdb.base.files import make_private
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.snapshot_set_properties import INCARNATION_PROPERTY
from zsnapdb.mysql import binlog_dump_clients as asked
from zsnapdb.mysql.binlog_dump_clients import ReplicaIdentity
from zsnapdb.mysql.process.service import serving
from zsnapdb.mysql.variables import server_flavour
from zsnapdb.planning.backup.fitness import FitnessFinding, ok, require_fit, unfit, warning
from zsnapdb.planning.restore.plan import RestorePlan
from zsnapdb.planning.restore.replica_checks import (
    NotedReader,
    ObservedReaders,
    QueriedReader,
    ReaderNote,
    ReaderNotes,
    beyond,
    judge,
    readers_to_record,
    sentence,
)
from zsnapdb.planning.restore.steps import Promote
from zsnapdb.zfs import datasets

_WHAT = "replicas"
_MOST_BYTES = 4 << 20
_PATIENCE = 10.0


def look(instance: Instance, datadir: Path) -> ObservedReaders | None:
    """Return the present binlog clients of the instance's server.

    Return None if no server answers and no server uses `datadir`. If a server uses `datadir` but does not answer, its
    clients are recorded as unknown.
    """
    try:
        session = instance.session()
    except ServerError as error:
        return ObservedReaders(hidden=error.message) if serving(datadir) is not None else None
    with session:
        try:
            return asked.observe_readers(session)
        except ServerError as error:
            return ObservedReaders(hidden=error.message)


def examine(instance: Instance, planned: RestorePlan) -> list[FitnessFinding]:
    """Return findings about binlog clients of the server that a restore replaces; empty if there is no such server."""
    return _findings(instance, _of(instance, planned)) if isinstance(planned.steps[-1], Promote) else []


def refuse(instance: Instance, planned: RestorePlan) -> ObservedReaders | None:
    """Return the binlog clients of the server that the restore replaces; None if that server does not answer.

    Raises PreflightError if the server has or may have clients, unless the user confirmed that all replicas will be
    rebuilt.
    """
    seen = _of(instance, planned)
    require_fit(_findings(instance, seen))
    return seen


def _of(instance: Instance, planned: RestorePlan) -> ObservedReaders | None:
    return look(instance, Path(planned.variables["datadir"]))


def _findings(instance: Instance, seen: ObservedReaders | None) -> list[FitnessFinding]:
    found = judge(seen, will_be_rebuilt=instance.replicas_will_be_rebuilt)
    told = [unfit(_WHAT, f.text, f.hint) if f.refuses else warning(_WHAT, f.text, f.hint) for f in found]
    return told or [ok(_WHAT, "no replica or client reads the binlogs of the server, and no account exists for one")]


def prepare(instance: Instance, planned: RestorePlan) -> ObservedReaders | None:
    """If the restore replaces a server, check its binlog clients like `refuse`. Record and return these clients."""
    if not isinstance(planned.steps[-1], Promote):
        return None
    seen = refuse(instance, planned)
    note(instance, planned, seen)
    return seen


def note(instance: Instance, planned: RestorePlan, seen: ObservedReaders | None) -> None:
    """Record the binlog clients of the server before its datasets are exchanged.

    If the server is down, no clients are recorded. Raises PreflightError if the record cannot be written, because then
    no command could report the replicas later.
    """
    readers = readers_to_record(seen) if seen is not None else ()
    before = _read(instance)
    in_place = _in_place(planned.promotion.replaced if planned.promotion is not None else [])
    if seen is None or (not readers and before.of(in_place) is None):
        return
    left_out = ""
    if planned.point.gtids is not None and seen.written:
        left_out = beyond(planned.flavour, seen.written, planned.point.gtids)
    made = ReaderNote(incarnation=planned.restore_id, at=instance.host.now(), readers=readers, left_out=left_out)
    file = _file(instance)
    try:
        make_private(file.parent)
        files.replace(file, before.with_note(made, in_place).model_dump_json().encode(), 0o600)
    except OSError as error:
        raise PreflightError(
            f"recording in {file} which replicas must be rebuilt: {error.strerror}",
            hint="free space there, or make the folder writable for the account that runs zsnapdb",
        ) from error


def forget(instance: Instance) -> tuple[NotedReader, ...]:
    """Delete the record after the user confirmed that all replicas are rebuilt. Return the recorded replicas."""
    known = tuple(reader for one in _read(instance).notes for reader in one.readers)
    _file(instance).unlink(missing_ok=True)
    return tuple(dict.fromkeys(known))


def remind(settings: Settings, instance: Instance) -> list[FitnessFinding]:
    """Return a finding for each replica that must still be rebuilt. `instance` must contain its volumes.

    If a replica is another configured instance, its server is queried for its GTIDs.
    """
    try:
        known = _read(instance).of(_in_place(list(instance.volumes.values())))
    except PreflightError as error:
        return [warning(_WHAT, error.message, error.hint)]
    except ZsnapdbError:
        # On a host without ZFS, no restored dataset can be in place. Another finding reports that ZFS is missing.
        return []
    if known is None:
        return []
    try:
        with instance.session() as session:
            seen, own = asked.observe_readers(session), asked.executed_gtids(session)
            flavour = server_flavour(session)
    except ServerError:
        # Another finding, about the server itself, reports the error.
        return []
    servers = list(_servers(settings, instance, flavour, own))
    sentences = [sentence(known, reader, seen, _answer(reader, servers)) for reader in known.readers]
    hint = (
        "rebuild it from this server (`zsnapdb restore --handover replica`); when all replicas are rebuilt,"
        f" `zsnapdb rewind {instance.name} --replicas-rebuilt` ends this"
    )
    told = [warning(_WHAT, text, hint) for text in sentences if text is not None]
    return told or [ok(_WHAT, f"the replicas from before {known.at:%Y-%m-%d %H:%M} UTC have nothing that it lacks")]


@dataclass(frozen=True)
class _Server:
    """The running server of another instance, and the GTIDs that this server has but the restored server lacks."""

    instance: str
    identity: ReplicaIdentity
    lacking: str


def _servers(settings: Settings, instance: Instance, flavour: Flavour, own: str) -> Iterator[_Server]:
    for name, other in sorted(settings.instance.items()):
        if name == instance.name or other.vm is not None:
            continue
        try:
            with Instance.of(settings, name).session(read_timeout=_PATIENCE) as session:
                if server_flavour(session) is flavour:
                    yield _Server(name, asked.identity(session), beyond(flavour, asked.executed_gtids(session), own))
        except (ZsnapdbError, ValueError):
            continue


def _answer(reader: NotedReader, servers: list[_Server]) -> QueriedReader | None:
    for server in servers:
        # A server_id is unique only among servers that replicate from each other, so compare the port too.
        its, who = server.identity, (reader.server_id, reader.port)
        if its.server_uuid == reader.server_uuid if reader.server_uuid else (its.server_id, its.port) == who:
            # MariaDB reports only the newest GTID. So a replica may have other transactions even if its newest GTID is
            # not ahead.
            is_proof = reader.server_uuid is not None or bool(server.lacking)
            return QueriedReader(server.instance, server.lacking if is_proof else None)
    return None


def _in_place(places: list[str]) -> str | None:
    there = [place for place in places if datasets.exists(place)]
    seen = datasets.properties_of(there, [INCARNATION_PROPERTY]) if there else {}
    marks = [values[INCARNATION_PROPERTY] for values in seen.values()]
    restores = {mark.value if mark.is_local else None for mark in marks}
    return restores.pop() if len(restores) == 1 else None


def _file(instance: Instance) -> Path:
    return instance.host.readers / f"{instance.name}.json"


def _read(instance: Instance) -> ReaderNotes:
    try:
        opened = os.open(_file(instance), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(opened, "rb") as file:
            return ReaderNotes.model_validate_json(file.read(_MOST_BYTES))
    except FileNotFoundError:
        return ReaderNotes()
    except (OSError, ValidationError) as error:
        raise PreflightError(
            f"the list of replicas to rebuild, {_file(instance)}, cannot be read",
            hint="move it away; then rebuild every replica that followed the server before the rewind",
        ) from error
