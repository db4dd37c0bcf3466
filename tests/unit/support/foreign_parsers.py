"""Every parser of untrusted data, with corrupted examples, for the fuzzing test and the campaign.

A parser gets the bytes and a folder. It may only raise errors of the package, and no example is slow.
"""

from __future__ import annotations

import json
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st

from tests.unit.jobs.test_restore_journal import plan
from tests.unit.mysql.test_greeting import GREETING
from tests.unit.planning.vm.test_restored_domain import HOSTILE
from tests.unit.support import binlog_archive, mutations, row_events, streams
from tests.unit.support import parsers_of_hosts as hosts
from tests.unit.support import parsers_of_repositories as repositories
from tests.unit.support.binlog_file import TAGGED_EVENTS, File
from tests.unit.support.clone_pool import HOME, ClonePool
from tests.unit.support.clone_pool import origin as clone_origin
from tests.unit.support.fake_sources import MACHINE
from tests.unit.support.manifests import manifest, of_kind
from tests.unit.support.parsers_of_repositories import GTIDS, ID, INSTANCE, NOW, signed
from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import ZsnapdbError
from zsnapdb.jobs.steps.journal import CompletedStep
from zsnapdb.jobs.steps.restore_journal import RestoreJournal, _form
from zsnapdb.mysql.binlog.events import HEADER, MAGIC
from zsnapdb.mysql.process.discovery import read_greeting
from zsnapdb.planning.repository.host_backup_record import (
    ArchivedPosition,
    BackupRecord,
    RecordedBackup,
    RecordedVolume,
    RemovedBackup,
)
from zsnapdb.planning.restore.steps import LeaveStopped
from zsnapdb.repository import catalogue, layout
from zsnapdb.repository.backup_journal import StartedBackup, StartedVolume, StreamFormat
from zsnapdb.repository.binlog_descriptions import ArchivedFile, CompleteRecord, HeadPart, Segment, SpanPart
from zsnapdb.repository.drills import CheckPart, Evidence, Outcome, StepPart
from zsnapdb.repository.marker import Marker
from zsnapdb.repository.writer_lease import Holder
from zsnapdb.stream.chunks import NO_CHUNK, Codec

PATIENCE = 10.0
"""Limit in seconds of processor time for one example. All take milliseconds."""


@dataclass(frozen=True)
class ForeignParser:
    """A parser, its corrupted examples, and the function that calls it with the bytes and a folder."""

    name: str
    examples: st.SearchStrategy[bytes]
    read: Callable[[bytes, Path], object]


class TooLongError(BaseException):
    """An example took more processor time than any document needs."""


@contextmanager
def _hurried() -> Iterator[None]:
    def late(number: int, frame: object) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def check(parser: ForeignParser, body: bytes) -> None:
    """Raise the errors that the parser must not raise for these bytes."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        with _hurried():
            parser.read(body, folder)
    except ZsnapdbError as error:
        str(error).encode()
    finally:
        shutil.rmtree(folder)


def _documents(*examples: bytes) -> st.SearchStrategy[bytes]:
    return st.one_of(*(mutations.documents(example) for example in examples))


def _lines(*examples: str) -> st.SearchStrategy[bytes]:
    return st.one_of(*(mutations.lines(example.encode(errors="surrogateescape")) for example in examples))


def _in_archive(key: str) -> Callable[[bytes, Path], object]:
    return lambda body, folder: repositories.archive(body, key)


def _described() -> Iterator[ForeignParser]:
    uuid, name, incarnation = binlog_archive.UUID, binlog_archive.NAME, binlog_archive.ID
    head = HeadPart.model_validate_json(binlog_archive.HEAD.encode())
    times = {"first_commit": 1_763_000_000_000_000, "last_commit": 1_763_000_000_000_001}
    gtids = {"gtids": f"{uuid}:6-7", "first_gtid": f"{uuid}:6", "last_gtid": f"{uuid}:7"}
    span = SpanPart.model_validate({"start": 0, "end": 500, "transactions": 2, **times, **gtids})
    common = {"repository_id": "id-1", "name": name, "codec": Codec.ZSTD}
    file = ArchivedFile.model_validate(
        {
            **common,
            "instance": INSTANCE,
            "incarnation": incarnation,
            "flavour": Flavour.MYSQL,
            "is_rotated": True,
            "head": head,
            "span": span,
            "size": 500,
            "sha256": "00" * 32,
            "attempt": "00aa",
            "chunks": (NO_CHUNK,),
            "keys": (binlog_archive.PART,),
        }
    )
    segment = Segment.model_validate(
        {**common, "start": 0, "end": 500, "attempt": "00aa", "span": span, "head": head, "chunk": NO_CHUNK}
    )
    complete = CompleteRecord(
        repository_id="id-1",
        instance=INSTANCE,
        incarnation=incarnation,
        name=name,
        end=500,
        until=1_763_000_000_000_000,
    )
    known = binlog_archive.INCARNATION.model_copy(update={"repository_id": "id-1"})
    for key, document in (
        (layout.incarnation(INSTANCE, incarnation), known),
        (layout.rotated_binlog(INSTANCE, incarnation, name), file),
        (layout.segment(INSTANCE, incarnation, name, 0, 500), segment),
        (layout.complete(INSTANCE, incarnation), complete),
    ):
        yield ForeignParser(type(document).__name__, _documents(document.encode() + b"\n"), _in_archive(key))


def _evidence() -> bytes:
    return Evidence(
        drill_id=ID,
        instance=INSTANCE,
        repository_id="id-1",
        requested="latest",
        backup_id=ID,
        seed=1,
        host="h",
        started=NOW,
        finished=NOW,
        tool_version="0",
        zfs_version="zfs-2.3.9",
        server_version="9.7.4",
        position="binlog.000001:4",
        steps=(StepPart(kind="receive", what="data", seconds=1.5, size=7),),
        checks=(CheckPart(kind="pages", what="data", outcome=Outcome.PASSED),),
    ).encode()


def _of_repositories() -> Iterator[ForeignParser]:
    full = manifest().encode()
    yield ForeignParser(
        "manifest",
        _documents(full + b"\n", full + b"\n", signed(full), of_kind("disks", disks=[1, {"a": "b"}]).encode() + b"\n"),
        repositories.manifest,
    )
    yield ForeignParser(
        "marker", _documents(Marker(id="id-1", recipients=("age1" + "q" * 58,)).encode()), repositories.marker
    )
    yield ForeignParser("signature", _documents(signed(b'{"a":1}')), repositories.signature)
    place = {"format": 1, "repository_id": "id-1", "instance": INSTANCE, "backup_id": ID}
    pin = json.dumps({**place, "reason": "r", "since": "2026-11-20T10:11:12Z"}).encode()
    yield ForeignParser("pin", _documents(pin + b"\n", signed(pin)), repositories.pin)
    mark = {
        "format": 1,
        "backup_id": ID,
        "instance": INSTANCE,
        "repository_id": "id-1",
        "host": "h",
        "started": "now",
        "snapshots": {"data": {"name": f"tank/a@zsnapdb-{ID}", "guid": 7, "from_guid": None}},
    }
    yield ForeignParser("unfinished mark", _documents(json.dumps(mark).encode() + b"\n"), repositories.mark)
    moment = "2026-11-20T10:11:12Z"
    found = {"when": moment, "damage": ["d"], "since": moment, "by": "verify"}
    findings = {ID: {"read": found}, f"{ID}/b.000001": {"listed": found}}
    checks = {"format": 1, "repository_id": "id-1", "instance": INSTANCE, "backups": findings}
    yield ForeignParser("check", _documents(json.dumps(checks).encode() + b"\n"), repositories.checks)
    yield ForeignParser("evidence of a drill", _documents(_evidence() + b"\n"), repositories.drill)
    lease = Holder("o", "h", 7, "p", "backup", moment, 3, moment, 60.0, "held", "id-1", "main/writer").encode()
    yield ForeignParser("lease", _documents(lease), repositories.lease)
    yield ForeignParser(
        "gtids", _lines(GTIDS, GTIDS + "," + GTIDS.replace("3e", "4f"), "0-1-7,5-2-9"), repositories.gtids
    )
    keys = (f"main/manifests/{ID}.json", f"main/chunks/{ID}/data/00000001", f"main/binlogs/{ID}/active/b.1/1-2.json")
    yield ForeignParser("key of an object", _lines(*keys), repositories.keys)
    yield from _described()


def _journal_lines() -> bytes:
    backup = manifest()
    started = StartedBackup(
        draft=backup.model_copy(update={"volumes": (), "keys": ()}),
        base=None,
        recipients=(),
        cut=StreamFormat(chunk_size=1 << 20, codec=Codec.ZSTD, level=3),
        volumes=(
            StartedVolume(
                role="data",
                dataset="tank/a",
                snapshot=f"zsnapdb-{ID}",
                guid=7,
                from_guid=None,
                send_flags=("-L",),
                type=backup.volumes[0].type,
            ),
        ),
    )
    entries = (
        {"begun": started.model_dump(mode="json")},
        {"key": binlog_archive.PART.model_dump(mode="json")},
        {"chunk": ["data", 1, False, backup.volumes[0].chunks[0]]},
        {"chunk": ["data", 2, True, backup.volumes[0].chunks[0]]},
        {"void": ["data", 1]},
        {"volume": backup.volumes[0].model_dump(mode="json")},
    )
    return b"\n".join(json.dumps(entry).encode() for entry in entries) + b"\n"


def _record() -> bytes:
    volume = RecordedVolume(role="data", dataset="tank/a", guid=7, from_guid=None, send_flags=("-L",))
    stored = RecordedBackup(backup_id=ID, gtids=GTIDS, volumes=(volume,), writer="w")
    removed = (RemovedBackup(backup_id=ID, guids=(1, 2)),)
    return (
        BackupRecord(instance=INSTANCE, repository_id="id-1", url="file:///r", stored=(stored,), removed=removed)
        .model_dump_json()
        .encode()
    )


def _cached() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        cache = catalogue.Cache(Path(folder) / "main.json", ())
        cache.write({ID: catalogue.KnownManifest("1 tag", catalogue.Summary.of(manifest(), "0" * 64))})
        return cache.file.read_bytes().partition(b"\n")[2]


def _clone_properties() -> str:
    pool = ClonePool()
    pool.clone("one", pool.snapshot(f"tank/main@zsnapdb-{ID}"))
    values = pool.things[f"{HOME}/one"].properties
    return "\n".join(values[key] for key in sorted(values))


def _binlogs() -> st.SearchStrategy[bytes]:
    tagged = bytes.fromhex(next(iter(TAGGED_EVENTS.values())))
    mysql = File().previous(5).previous(5, "blue").transaction(6, committed=10**15).anonymous(committed=10**15)
    mariadb = File(version=b"11.8.2-MariaDB").gtid_list((0, 1, 7), (1, 2, 9)).mariadb_transaction(8)
    mariadb.mariadb(9, standalone=True).query(b"CREATE TABLE t (a INT)")
    kinds = [
        *_events(mysql),
        *_events(mariadb),
        (42, tagged),
        (26, b"\1\0\0"),
        (38, b"x" * 20),
        (40, b"\2\3\1\xff" * 5),
    ]
    kinds += [(165, b"x" * 40), (250, b""), (164, b"")]
    whole = (mysql, mariadb, row_events.every_form())
    kinds += _events(whole[-1])
    return st.one_of(mutations.binlogs(tuple(kinds)), *(mutations.spoiled(bytes(file.data)) for file in whole))


def _events(file: File) -> Iterator[tuple[int, bytes]]:
    at = len(MAGIC)
    while at < len(file.data):
        _, kind, _, length, _, _ = HEADER.unpack_from(file.data, at)
        yield kind, bytes(file.data[at + HEADER.size : at + length - 4])
        at += length


def _streams() -> st.SearchStrategy[bytes]:
    little = streams.begin() + streams.write(b"x" * 512) + streams.compressed_write(b"y" * 64) + streams.end()
    big = streams.begin(">") + streams.write(b"x" * 512, ">") + streams.end(">")
    return st.one_of(mutations.spoiled(little), mutations.spoiled(big), mutations.spoiled(streams.stream_of(2000)))


_MOUNTS = (
    "22 1 0:20 / /sys rw,nosuid shared:7 - sysfs sysfs rw\n"
    "40 1 0:33 / /a\\040b rw shared:1 - zfs tank/a rw,xattr\n"
    "41 40 0:34 /sub /a/b rw - zfs tank/a@s rw\n"
)
_ZFS_OUTPUTS = (
    f"tank/a@zsnapdb-{ID}\t18446744073709551615\t77\t{ID}\ntank/a@b\t2\t78\t-\n",
    f"tank/a@b\tguid\t7\t-\ntank/a@b\tcreatetxg\t8\t-\ntank/a@b\tzsnapdb:backup\t{ID}\tlocal\n",
    "tank/a@b\t1\ttank/c,tank/d\t4096\n",
    "tank/a@b\tkeep\tSun Nov 22 10:00 2026\n",
    "guid\t123\t-\n",
    "123\n",
    "zfs-2.3.9-1\nzfs-kmod-2.3.9-1\n",
    "full\ttank/a@b\t600\nsize\t600\n",
)
_INSIDE = (
    "version\t11.8.3-MariaDB-log\nserver_id\t1\nlog_bin\tON\n",
    "version\t9.7.4\nserver_uuid\t3e11fa47-71ca-11e1-9e33-c80aa9429562\nserver_id\t1\nlog_bin\tON\n",
    "binlog.000001\t330\nbinlog.000002\t4096\tNo\n",
    "binlog.000002\t256\tGtid_list\t1\t285\t[0-1-7,5-2-9]\n",
    f"binlog.000002\t126\tPrevious_gtids\t1\t197\t{GTIDS}\\n\n",
    f"{GTIDS}\n",
    "app\tt\tBASE TABLE\tInnoDB\t\t16384\napp\ts\tSEQUENCE\tNULL\t\t0\n",
    "app.t\tcheck\tstatus\tOK\n",
)
_PROCESS = (
    "mysqld\0--defaults-file=/clones/one/.zsnapdb/server.cnf\0--user=mysql\0\n"
    "7 (my) sqld) S 1 7 7 0 -1 4194560 1 0 0 0 1 1 0 0 20 0 39 0 4242 1 1\n"
)


def _of_hosts() -> Iterator[ForeignParser]:
    lines = _journal_lines()
    yield ForeignParser("journal of a backup", _documents(lines), hosts.journal)
    yield ForeignParser("journal of a backup, with checksums", _documents(lines), hosts.checksummed_journal)
    yield ForeignParser("cache of manifests", _documents(_cached()), hosts.cache)
    yield ForeignParser("record of the host", _documents(_record()), hosts.record)
    archived = ArchivedPosition(incarnation=ID, file="b.000001", end=7, last_commit=9).model_dump_json().encode()
    yield ForeignParser("archived position of the host", _documents(archived), hosts.archived)
    restore = RestoreJournal(plan(LeaveStopped(1))).with_done(CompletedStep("preflight", NOW, 0.5))
    yield ForeignParser("journal of a restore", _documents(_form().dump_json(restore)), hosts.restore_journal)
    answers = (b'{"return": 3}', b'{"return": "frozen"}', b'{"return": [{"mountpoint": "/"}]}')
    yield ForeignParser("answer of a guest agent", _documents(*answers), hosts.guest_agent)
    ended = {"exited": True, "exitcode": 0, "out-data": "MA==", "err-data": "", "out-truncated": False}
    programs = (b'{"return": {"pid": 7}}', json.dumps({"return": ended}).encode(), b'{"return": {"exited": false}}')
    yield ForeignParser("end of a program in a guest", _documents(*programs), hosts.guest_program)
    yield ForeignParser("answers of a server in a guest", _lines(*_INSIDE), hosts.server_inside)
    greetings = (GREETING, b"\x17\0\0\0\xff\x6a\x04Host is not allowed")
    yield ForeignParser(
        "greeting of a server", st.one_of(*map(mutations.spoiled, greetings)), lambda body, _: read_greeting(body)
    )
    yield ForeignParser("domain in a manifest", _lines(MACHINE, HOSTILE), hosts.stored_domain)
    yield ForeignParser("origin of a copy", _documents(clone_origin().encode().encode()), hosts.origin)
    yield ForeignParser("properties of a clone", _lines(_clone_properties()), hosts.clone)
    yield ForeignParser("binlog", _binlogs(), hosts.binlog_file)
    yield ForeignParser("send stream", _streams(), hosts.stream)
    yield ForeignParser("rest of a send stream", _streams(), hosts.rest_of_a_stream)
    yield ForeignParser("chunk", mutations.spoiled(bytes(hosts.BODY)), hosts.chunk)
    yield ForeignParser("mount table", _lines(_MOUNTS), hosts.mountinfo)
    yield ForeignParser("output of zfs", _lines(*_ZFS_OUTPUTS), hosts.zfs_output)
    yield ForeignParser("process list", _lines(_PROCESS), hosts.processes)
    index = "@DATA@/binlog.000001\n./binlog.000002\n@OUT@/binlog.000001\n"
    yield ForeignParser("index of binlogs", _lines(index, "../outside/binlog.000001\n"), hosts.index)
    yield ForeignParser("keyring's own file", _documents(b'{"path":"/k/keys","read_only":false}'), hosts.keyring_file)
    options = "[client]\nuser=zsnapdb\npassword=secret\nhost=127.0.0.1\nport=33070\n"
    yield ForeignParser("option file", _lines(options), hosts.credentials_file)


PARSERS = (*_of_repositories(), *_of_hosts())
