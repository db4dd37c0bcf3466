"""Parsers of files on the host and of program output, as a fuzzer calls them."""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest import mock

from tests.unit.support.clone_pool import HOME, ClonePool
from tests.unit.support.parsers_of_repositories import ID, INSTANCE, NOW, repository_of
from zsnapdb.base.domain_types import BinlogCoordinates, Flavour, Position
from zsnapdb.base.errors import ZsnapdbError
from zsnapdb.config.settings import CloneSettings, Settings
from zsnapdb.jobs.base.host import THIS_HOST
from zsnapdb.jobs.binlog.server_binlogs import BinlogSource, LocalFiles, cuts
from zsnapdb.jobs.clone import catalogue as clone_catalogue
from zsnapdb.jobs.clone import credentials as clone_credentials
from zsnapdb.jobs.host.binlog_spans import whole_span
from zsnapdb.jobs.record.record_file import HostRecord
from zsnapdb.jobs.steps.restore_journal import Journals
from zsnapdb.mysql import vm_guest_client
from zsnapdb.mysql.binlog import tail as binlog
from zsnapdb.mysql.binlog.transaction_changes import row_changes, transaction_changes
from zsnapdb.mysql.binlog.transactions import read_head, transactions
from zsnapdb.mysql.process import discovery
from zsnapdb.mysql.process.written_paths import keyring_paths
from zsnapdb.planning.server_copy import source_facts as server_origin
from zsnapdb.planning.server_copy.copy_options import rewrite_index
from zsnapdb.planning.trial.drill import judge_position, judge_table
from zsnapdb.planning.vm import guest_agent_messages
from zsnapdb.planning.vm.domain import parse, root_of
from zsnapdb.planning.vm.restored_domain import TRUSTED, RestoredIdentity, restored
from zsnapdb.repository import catalogue
from zsnapdb.repository.backup_journal import BackupJournal
from zsnapdb.stream.chunks import Codec, Workspace, seal, unseal
from zsnapdb.stream.resume_stream import ResumedStream, ResumePoint, first_place
from zsnapdb.stream.send_stream_checks import RECORD_BYTES, DatasetKind, ExpectedStream, Senders, Walker, parse_begin
from zsnapdb.zfs import datasets, holds, mounts, snapshots, version
from zsnapdb.zfs import streams as zfs_streams

MACHINE = "11111111-2222-4333-8444-555555555555"
_PLAIN = bytes(range(256)) * 40
BODY, CHUNK = seal(memoryview(_PLAIN), Codec.ZSTD, 3, None, b"")


def each(*calls: Callable[[], object]) -> None:
    """Call all of them, even if some raise."""
    for call in calls:
        try:
            call()
        except ZsnapdbError:
            continue


def journal(body: bytes, folder: Path) -> None:
    file = folder / ID
    file.write_bytes(body)
    read = BackupJournal.read(file)
    read.started.snapshots()
    read.started.draft.encode()
    assert all(len(known.chunk) == 5 and known.chunk.stored_size >= 0 for known in read.known("data").values())


def checksummed_journal(body: bytes, folder: Path) -> None:
    """A journal with correct checksums of its lines."""
    lines = [line for line in body.split(b"\n") if line]
    journal(b"".join(b"%08x %s\n" % (zlib.crc32(line), line) for line in lines), folder)


def guest_agent(body: bytes, folder: Path) -> None:
    text = body.decode(errors="replace")
    each(
        lambda: guest_agent_messages.count(text),
        lambda: guest_agent_messages.is_frozen(text),
        lambda: guest_agent_messages.mount_points(text),
    )
    each(lambda: guest_agent_messages.addresses(text))


def guest_program(body: bytes, folder: Path) -> None:
    text = body.decode(errors="replace")
    each(lambda: guest_agent_messages.started(text), lambda: guest_agent_messages.parse_end(text))


def server_inside(body: bytes, folder: Path) -> None:
    """The client's output in a guest for each query: any output leads to a verdict or a refusal."""
    rows = vm_guest_client.rows(body.decode(errors="replace"))
    each(lambda: vm_guest_client.variables(rows), lambda: vm_guest_client.binlogs(rows))
    each(
        lambda: judge_table(next(iter(vm_guest_client.check_results(vm_guest_client.tables(rows), rows).values()), ()))
    )
    for flavour in Flavour:

        def judged(flavour: Flavour = flavour) -> None:
            listed = vm_guest_client.recovered(flavour, rows)
            answer = vm_guest_client.answered({"version": "1"}, (("b.000001", 7),), listed, listed)
            before = Position(flavour, BinlogCoordinates("b.000001", 4), listed, "fuzz")
            assert judge_position(before, before, replace(answer, flavour=flavour)).reason

        each(judged, lambda flavour=flavour: vm_guest_client.gtids_now(flavour, rows))  # type: ignore[misc]


def stored_domain(body: bytes, folder: Path) -> None:
    """The XML of a domain in a manifest: whatever it contains, the restored domain gets no file of the host."""
    text = body.decode(errors="replace")
    disks = {target: f"/dev/zvol/tank/back/{target}" for target in (disk.target for disk in parse(text).volumes)}
    identity = RestoredIdentity("back", MACHINE, MACHINE, "tank/back", ID, disks)
    made = restored(text, identity, "isolated")
    for element in root_of(made.xml).iter():
        for value in (element.text or "", *element.attrib.values()):
            assert "/" not in value or value in disks.values() or TRUSTED.fullmatch(value.strip()), value
    parse(made.xml)


def cache(body: bytes, folder: Path) -> None:
    cache = catalogue.Cache.of(folder, repository_of(b""), INSTANCE)
    cache.file.parent.mkdir(parents=True, exist_ok=True)
    cache.file.write_bytes(catalogue.sealed(body))
    for entry in cache.read().values():
        _ = (NOW - entry.summary.created).total_seconds(), entry.summary.source


def record(body: bytes, folder: Path) -> None:
    record = HostRecord(folder, INSTANCE, "id-1", "file:///r")
    (folder / "backups.json").write_bytes(body)
    record.backups().removed_guids()


def archived(body: bytes, folder: Path) -> None:
    record = HostRecord(folder, INSTANCE, "id-1", "file:///r")
    (folder / "archive.json").write_bytes(body)
    position = record.archived()
    _ = position.place if position is not None else None


def restore_journal(body: bytes, folder: Path) -> None:
    journals = Journals(folder)
    journals.path("tank/x").write_bytes(body)
    (folder / "done").mkdir(exist_ok=True)
    (folder / "done" / "x.json").write_bytes(body)
    _ = journals.history(INSTANCE), journals.readable(INSTANCE)
    journals.read("tank/x")


def origin(body: bytes, folder: Path) -> None:
    known = server_origin.decode(body.decode(errors="replace"), "tank/x")
    _ = known.unlogged_gtids, known.has_gtids, known.describe(), known.encode()


def clone(body: bytes, folder: Path) -> None:
    rows = iter((body.decode(errors="replace").split("\n") + [""] * 40)[:40])
    pool = ClonePool()
    pool.clone("one", pool.snapshot(f"tank/main@zsnapdb-{ID}"))
    spoiled = {key: next(rows) for key in sorted(pool.things[f"{HOME}/one"].properties)}
    members = {
        name: {key: datasets.Property(value, "local") for key, value in thing.properties.items()}
        for name, thing in pool.things.items()
        if name.startswith(f"{HOME}/")
    }
    names = (*clone_catalogue._COLUMNS, "zsnapdb:clone", "zsnapdb:phase", "zsnapdb:instance")
    for name in members:
        values = spoiled if name == f"{HOME}/one" else {}
        members[name] = {
            key: datasets.Property(values.get(key, "1"), "local")
            if key not in members[name] or key in values
            else members[name][key]
            for key in names
        }
    members[f"{HOME}/one"]["zsnapdb:clone"] = datasets.Property("one", "local")
    with (
        mock.patch.object(datasets, "exists", return_value=True),
        mock.patch.object(datasets, "children", return_value=members),
    ):
        for info in clone_catalogue.listing(
            Settings.model_construct(instance={}, repository={}, clones=CloneSettings(dataset=HOME)), THIS_HOST
        ):
            assert str(info.mount).startswith("/")
            assert ".." not in info.mount.parts
            assert 0 <= info.port <= 65535
            assert (info.owner + info.created + info.requested).isprintable()
            _ = info.host, info.client_file


def binlog_file(body: bytes, folder: Path) -> None:
    file = io.BytesIO(body)
    each(
        lambda: str(read_head(file, "b")),
        lambda: str(binlog.tail_of(file, "b").gtids),
        lambda: [(one.gtid, one.size, one.committed) for one in transactions(file, "b")],
        lambda: whole_span(file, "b"),
        lambda: list(cuts(file, "b", len(body), start=0, complete=4, limit=4096)),
        lambda: [str((one.tables, one.statements, one.unknown)).encode() for one in transaction_changes(file, "b")],
        lambda: [repr(row_changes(file, "b", one)).encode() for one in list(transaction_changes(file, "b"))],
    )


def stream(body: bytes, folder: Path) -> None:
    for senders in Senders:
        walker = Walker(senders=senders)
        view, step = memoryview(body), 1 + len(body) // 7
        for at in range(0, len(body), step):
            walker.feed(view[at : at + step])
        walker.finish()


def rest_of_a_stream(body: bytes, folder: Path) -> None:
    facts = parse_begin(body)
    point = ResumePoint(1, 0, len(body), facts.to_guid, facts.from_guid)
    first_place(memoryview(body[len(body) // 3 :]), facts.to_guid)
    expected = ExpectedStream(facts.name, DatasetKind.FILESYSTEM, facts.to_guid, facts.from_guid)
    for place in (first_place(memoryview(body), facts.to_guid), (1, 0)):
        for of_the_whole in (True, False):
            at = replace(point, object=place[0], offset=place[1]) if place is not None else point
            rest = ResumedStream(body[: RECORD_BYTES + facts.payload_size], at, expected)
            if of_the_whole:
                rest.begin_with_the_whole()
            view, step = memoryview(bytearray(body)), 1 + len(body) // 7
            for start in range(0, len(body), step):
                for piece in rest.feed(view[start : start + step], last=start + step >= len(body)):
                    assert len(piece) <= len(body) + RECORD_BYTES


def chunk(body: bytes, folder: Path) -> None:
    unseal(body, CHUNK._replace(stored_size=len(body)), Codec.ZSTD, None, b"", "chunk", workspace=Workspace())


def mountinfo(body: bytes, folder: Path) -> None:
    for entry in mounts.parse(os.fsdecode(body)):
        assert isinstance(entry.path, str)


def zfs_output(body: bytes, folder: Path) -> None:
    text = body.decode(errors="replace")
    calls: tuple[Callable[[], object], ...] = (
        lambda: snapshots.describe(["tank/a@b"]),
        lambda: snapshots.list_owned(["tank/a"], ["zsnapdb:backup"]),
        lambda: snapshots.below("tank/a", ["zsnapdb:backup"]),
        lambda: snapshots.uses(["tank/a"]),
        lambda: snapshots.by_guid("tank/a"),
        lambda: snapshots.send_points(["tank/a"]),
        lambda: snapshots.bookmarks(["tank/a"]),
        lambda: holds.hold_tags("tank/a@b"),
        lambda: holds.held_snapshots(["tank/a"], "t"),
        lambda: datasets.children("tank/a", ["zsnapdb:backup"]),
        lambda: datasets.properties("tank/a", ["guid"]),
        lambda: datasets.guid("tank/a"),
        lambda: datasets.available("tank/a"),
        lambda: datasets.pools(),
        lambda: version.pool_guid("tank"),
        lambda: version.kernel_release(),
        lambda: version.missing_features("tank", 1 << 16),
        lambda: zfs_streams.estimate("tank/a@b", None, ()),
    )
    with (
        mock.patch("zsnapdb.zfs.command.run", return_value=text),
        mock.patch("zsnapdb.zfs.snapshots.run", return_value=text),
        mock.patch("zsnapdb.zfs.holds.run", return_value=text),
        mock.patch("zsnapdb.zfs.datasets.run", return_value=text),
        mock.patch("zsnapdb.zfs.pool_facts.run", return_value=text),
    ):
        each(*calls)


def processes(body: bytes, folder: Path) -> None:
    proc = folder / "proc" / "7"
    proc.mkdir(parents=True, exist_ok=True)
    words, _, status = body.partition(b"\n")
    (proc / "cmdline").write_bytes(words)
    (proc / "stat").write_bytes(status)
    with (
        mock.patch.object(discovery, "Path", lambda path: Path(str(path).replace("/proc/7", str(proc)))),
        mock.patch("os.readlink", return_value="/clones/one/data"),
    ):
        server = discovery._server(7, [Path("/clones")], ".zsnapdb")
    assert server is None or (server.place.parent == Path("/clones") and ".." not in server.place.parts)


def index(body: bytes, folder: Path) -> None:
    data, outside = folder / "data", folder / "outside"
    data.mkdir(exist_ok=True)
    outside.mkdir(exist_ok=True)
    (outside / "binlog.000001").write_bytes(b"secret")
    index = data / "binlog.index"
    index.write_bytes(body.replace(b"@OUT@", str(outside).encode()).replace(b"@DATA@", str(data).encode()))
    for line in rewrite_index(body.decode(errors="surrogateescape"), "/copy").split("\n"):
        assert not line or os.path.dirname(os.path.normpath(line)) in ("/copy", "/"), line
    files = LocalFiles(BinlogSource(Flavour.MYSQL, None, 1, index, data, data))
    for known in files.list():
        assert files.path(known.name).parent == data, known


def keyring_file(body: bytes, folder: Path) -> None:
    (folder / "component_keyring_file.cnf").write_bytes(body)
    variables = {"datadir": str(folder), "plugin_dir": str(folder)}
    for path in keyring_paths(variables):
        assert "\0" not in path.path


def credentials_file(body: bytes, folder: Path) -> None:
    (folder / "client.cnf").write_bytes(body)
    password = clone_credentials.read(folder / "client.cnf")
    assert password is None or "\n" not in password.get_secret_value()
