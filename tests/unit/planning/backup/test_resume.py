"""Whether an interrupted backup continues, and which of its journal's lines count."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.support.manifests import manifest
from zsnapdb.base.errors import DamagedError
from zsnapdb.planning.backup.resume import (
    Cause,
    Interrupted,
    ResumeDecision,
    ResumeJudgement,
    Surroundings,
    judge,
)
from zsnapdb.repository.backup_journal import BackupJournal, StartedBackup, StartedVolume, StreamFormat
from zsnapdb.repository.manifest import FilesystemType, KeyPart
from zsnapdb.stream.chunks import Chunk, Codec
from zsnapdb.stream.upload import KnownChunk

BACKUP = "20261120T101112Z-7f3a"
BASE = "20261120T091112Z-0001"
NOW = datetime(2026, 11, 20, 11, 0, tzinfo=UTC)
FLAGS = ("-L",)
BEGUN = Interrupted(BACKUP, "r", ("age1a",), (FLAGS,), BASE, frozenset({("t/d", 5)}), frozenset({("t/d", 4)}))
HERE = Surroundings(NOW, "r", ("age1a",), (FLAGS,), (BASE,), {("t/d", 5)}, {("t/d", 5), ("t/d", 4)})
DAY = 86400.0


def test_with_all_it_needs_it_goes_on() -> None:
    assert judge(BEGUN, HERE, within=DAY).decision is ResumeDecision.CONTINUE


@pytest.mark.parametrize(
    ("change", "because"),
    [
        ({"sources": ()}, Cause.SNAPSHOT_GONE),
        ({"sources": {("t/other", 5)}}, Cause.SNAPSHOT_GONE),
        ({"origins": {("t/d", 5)}}, Cause.BASE_GONE),
        ({"stored": ()}, Cause.BASE_NOT_STORED),
        ({"repository_id": "other"}, Cause.OTHER_REPOSITORY),
        ({"recipients": ()}, Cause.OTHER_RECIPIENTS),
        ({"send_flags": (("-L", "-c"),)}, Cause.OTHER_FLAGS),
        ({"time": NOW + timedelta(days=2)}, Cause.TOO_OLD),
    ],
)
def test_each_thing_it_lacks_is_a_reason_of_its_own(change: dict[str, object], because: Cause) -> None:
    judgement = judge(BEGUN, replace(HERE, **change), within=DAY)  # type: ignore[arg-type]
    assert (judgement.decision, judgement.because) == (ResumeDecision.GIVE_UP, because)


def test_what_is_stored_is_finished_even_if_it_is_old_or_asked_to_be_given_up() -> None:
    stored = replace(HERE, stored=(BASE, BACKUP), kept=BEGUN.snapshots, time=NOW + timedelta(days=99), sources=())
    assert judge(BEGUN, stored, within=DAY, fresh=True) == ResumeJudgement(
        ResumeDecision.FINISH, Cause.STORED, "its manifest is in the repository"
    )


@pytest.mark.parametrize("kept", [None, frozenset({("t/d", 6)})])
def test_manifest_of_others_under_its_id_ends_no_backup(kept: frozenset[tuple[str, int]] | None) -> None:
    judgement = judge(BEGUN, replace(HERE, stored=(BASE, BACKUP), kept=kept), within=DAY)
    assert (judgement.decision, judgement.because) == (ResumeDecision.LEAVE, Cause.STORED_OTHERWISE)


def test_without_a_limit_nothing_is_too_old_and_a_clock_set_back_makes_nothing_old() -> None:
    assert judge(BEGUN, replace(HERE, time=NOW + timedelta(days=99)), within=None).decision is ResumeDecision.CONTINUE
    assert judge(BEGUN, replace(HERE, time=NOW - timedelta(days=99)), within=1.0).decision is ResumeDecision.CONTINUE


def started() -> StartedBackup:
    volume = StartedVolume(
        role="data",
        dataset="t/d",
        snapshot=f"zsnapdb-{BACKUP}",
        guid=5,
        from_guid=4,
        send_flags=FLAGS,
        type=FilesystemType(mountpoint="/d", properties={"compression": "lz4"}),
    )
    cut = StreamFormat(chunk_size=4096, codec=Codec.ZSTD, level=1)
    return StartedBackup(
        draft=manifest(BACKUP).model_copy(update={"volumes": ()}),
        base=BASE,
        recipients=("age1a",),
        cut=cut,
        volumes=(volume,),
    )


def refuse(error: OSError) -> None:
    raise AssertionError(error)


def chunk(number: int, last: bool = False) -> KnownChunk:
    return KnownChunk(Chunk(number, f"{number:064x}", number, f"{number:064x}", "1"), last)


def test_a_journal_reads_back_as_it_was_told(tmp_path: Path) -> None:
    journal = BackupJournal.create(tmp_path, started(), refuse)
    part = KeyPart(id="1", recipients=("age1a",), wrapped="w")
    journal.add_key(part)
    for index in (2, 1, 3):
        journal.stored("data", index, chunk(index, last=index == 3))
    journal.forget("data", 1)
    journal.volume_done(manifest().volumes[0])
    journal.close()
    journal = BackupJournal.read(tmp_path / BACKUP)
    assert journal.started == started()
    assert journal.keys == {"1": part}
    assert journal.known("data") == {2: chunk(2), 3: chunk(3, last=True)}
    assert journal.known("parent") == {}
    assert journal.finished == {"data": manifest().volumes[0]}


@given(st.data())
def test_cut_anywhere_it_says_what_was_whole_and_can_be_written_on(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    journal = BackupJournal.create(folder, started(), refuse)
    first = journal.file.stat().st_size
    for index in range(1, 6):
        journal.stored("data", index, chunk(index))
    journal.close()
    body = journal.file.read_bytes()
    cut = data.draw(st.integers(first, len(body)))
    torn = data.draw(st.binary(max_size=900).filter(lambda tail: b"\n" not in tail))
    journal.file.write_bytes(body[:cut] + torn)
    whole = body[:cut].count(b"\n") - 1
    assert BackupJournal.read(journal.file).known("data") == {index: chunk(index) for index in range(1, whole + 1)}
    again = BackupJournal.read(journal.file)
    again.go_on()
    again.stored("data", 9, chunk(9))
    again.close()
    assert set(BackupJournal.read(journal.file).known("data")) == {*range(1, whole + 1), 9}


@pytest.mark.parametrize("where", [0.0, 0.01, 0.3, 0.6, 0.9, 0.999])
def test_one_that_changed_in_its_midst_is_not_believed_at_all(tmp_path: Path, where: float) -> None:
    journal = BackupJournal.create(tmp_path, started(), refuse)
    for index in range(1, 6):
        journal.stored("data", index, chunk(index))
    journal.close()
    body = bytearray(journal.file.read_bytes())
    # The last line may be torn; all lines before it must be complete.
    end = body.rindex(b"\n", 0, len(body) - 1)
    body[int(where * end)] ^= 4
    journal.file.write_bytes(bytes(body))
    with pytest.raises(DamagedError, match=r"cannot be read"):
        BackupJournal.read(journal.file)


@pytest.mark.parametrize("body", [b"", b"\n", b"nonsense\n", b"\0" * 4096])
def test_what_is_no_journal_is_damage(tmp_path: Path, body: bytes) -> None:
    (tmp_path / BACKUP).write_bytes(body)
    with pytest.raises(DamagedError):
        BackupJournal.read(tmp_path / BACKUP)


def test_a_journal_under_another_name_is_not_believed(tmp_path: Path) -> None:
    BackupJournal.create(tmp_path, started(), refuse).close()
    (tmp_path / BACKUP).rename(tmp_path / BASE)
    with pytest.raises(DamagedError, match=f"belongs to backup {BACKUP}"):
        BackupJournal.read(tmp_path / BASE)
