"""What a drill samples and how it judges; its evidence; the durations expected from past drills."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.support.rewritten import rewritten
from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import ConsistencyError, DamagedError, NotFound, PreflightError
from zsnapdb.config.settings import ProbeSettings
from zsnapdb.jobs.trial import drill as job
from zsnapdb.mysql.process import programs
from zsnapdb.mysql.process.programs import is_version_of
from zsnapdb.planning.server_family import MYSQL
from zsnapdb.planning.trial.drill import (
    Sized,
    Timing,
    batches,
    choose_backup,
    expected_seconds,
    judge_probe,
    judge_table,
    lacks_resources,
    sample_pages,
    sample_whole,
)
from zsnapdb.repository import drills
from zsnapdb.repository.drills import CheckPart, Evidence, Outcome, StepPart
from zsnapdb.repository.repository import Repository
from zsnapdb.store.local import LocalStore

PAGE = 16384
NAMES = st.text("abcdef", min_size=1, max_size=6)
ITEMS = st.lists(st.builds(Sized, NAMES, st.integers(0, 100 * PAGE)), unique_by=lambda item: item.name, max_size=12)


@given(ITEMS, st.integers(0, 300 * PAGE), st.integers(0, 2**32), st.randoms())
def test_a_sample_is_decided_by_its_seed_alone_and_keeps_to_the_budget(
    items: list[Sized], budget: int, seed: int, shuffle: object
) -> None:
    chosen = sample_whole(items, budget, seed)
    again = list(items)
    shuffle.shuffle(again)  # type: ignore[attr-defined]
    assert sample_whole(again, budget, seed) == chosen
    assert sum(item.size for item in chosen) <= budget or len(chosen) == 1
    assert bool(chosen) == bool(items)
    assert set(sample_whole(items, None, seed)) == set(items)


@given(ITEMS, st.integers(0, 300 * PAGE), st.integers(0, 2**32))
def test_sampled_pages_exist_and_use_the_budget_up(items: list[Sized], budget: int, seed: int) -> None:
    sizes = {item.name: item.size // PAGE for item in items}
    count = 0
    for part in sample_pages(items, PAGE, budget, seed):
        last = sizes[part.file] - 1 if part.last is None else part.last
        assert 0 <= part.first <= last < sizes[part.file]
        count += last - part.first + 1
    assert count == min(max(1, budget // PAGE), sum(sizes.values()))
    assert {part.file for part in sample_pages(items, PAGE, None, seed)} == set(sizes)


@given(ITEMS, st.integers(0, 300 * PAGE), st.integers(0, 2**32), st.integers(1, 200))
def test_batches_have_every_range_once_in_order(items: list[Sized], budget: int, seed: int, factor: int) -> None:
    sizes = {item.name: item.size * factor for item in items}
    ranges = sample_pages(items, PAGE, budget, seed)
    alone = items[0].name if items else ""
    groups = list(batches(ranges, sizes, alone=alone))
    assert tuple(part for batch in groups for part in batch) == ranges
    for batch in groups:
        assert len(batch) == 1 or all(part.last is None and part.file != alone for part in batch)
        assert len(batch) == 1 or sum(sizes[part.file] for part in batch) <= 64 << 20


def test_thousands_of_small_files_are_few_batches() -> None:
    files = [Sized(f"t{number}.ibd", 7 * PAGE) for number in range(20_000)]
    ranges = sample_pages(files, PAGE, None, 0)
    assert len(list(batches(ranges, {file.name: file.size for file in files}, alone="ibdata1"))) == 100


def test_with_enough_seeds_every_page_and_every_table_has_its_turn() -> None:
    (file,) = files = [Sized("large.ibd", 50 * PAGE)]
    seen = {
        page
        for seed in range(200)
        for part in sample_pages(files, PAGE, 10 * PAGE, seed)
        for page in range(part.first, (part.last or 49) + 1)
    }
    assert seen == set(range(file.size // PAGE))
    tables = [Sized(f"t{n}", 3 * PAGE) for n in range(10)]
    assert {table.name for seed in range(100) for table in sample_whole(tables, 3 * PAGE, seed)} == {
        table.name for table in tables
    }


def test_a_random_backup_is_one_the_seed_decides() -> None:
    known = [f"20261120T10111{n}Z-7f3a" for n in range(6)]
    assert choose_backup(known, 5) == choose_backup(known, 5)
    assert {choose_backup(known, seed) for seed in range(100)} == set(known)
    with pytest.raises(NotFound, match="no backup"):
        choose_backup([], 1)


@pytest.mark.parametrize(
    ("rows", "wrong"),
    [
        ([("l.t", "check", "status", "OK")], None),
        ([("l.t", "check", "Warning", "1 client is using the table"), ("l.t", "check", "status", "OK")], None),
        ([("l.t", "check", "status", "Table is already up to date")], None),
        ([("l.t", "check", "note", "The storage engine for the table doesn't support check")], None),
        (
            [("l.t", "check", "Warning", "InnoDB: The B-tree is corrupted."), ("l.t", "check", "error", "Corrupt")],
            "InnoDB: The B-tree is corrupted.; Corrupt",
        ),
        (
            [("l.t", "check", "Error", "Table 'l.t' doesn't exist"), ("l.t", "check", "status", "Operation failed")],
            "Table 'l.t' doesn't exist; Operation failed",
        ),
        (
            [("l.t", "check", "Warning", "InnoDB: Index k is marked as corrupted"), ("l.t", "check", "status", "OK")],
            "InnoDB: Index k is marked as corrupted; OK",
        ),
        ([], "CHECK TABLE answered nothing"),
    ],
)
def test_the_answer_of_check_table_is_judged_by_its_verdict(rows: list[tuple[str, ...]], wrong: str | None) -> None:
    assert judge_table(rows) == wrong


@pytest.mark.parametrize(
    ("probe", "rows", "wrong"),
    [
        ({"expect": 3}, [(3,)], None),
        ({"expect": 3}, [(Decimal("3.0"),)], None),
        ({"expect": 3}, [(4,)], "4, not 3"),
        ({"expect": "a"}, [(b"a",)], None),
        ({"expect": "a"}, [("b",)], "'b', not 'a'"),
        ({"expect": "NULL"}, [(None,)], None),
        ({"at_least": 3}, [(3,)], None),
        ({"at_least": 3}, [(2,)], "2, less than 3"),
        ({"at_most": 3.5}, [("3.6",)], "3.6, more than 3.5"),
        ({"at_least": 1, "at_most": 2}, [(1.5,)], None),
        ({"at_least": 1}, [("many",)], "'many' is not a number"),
        ({"at_least": 1}, [("NaN",)], "'NaN' is not a number"),
        ({"expect": 3}, [("many",)], "many, not 3"),
        ({"expect": 3}, [], "0 rows, not one"),
        ({"expect": 3}, [(3,), (3,)], "2 rows, not one"),
    ],
)
def test_a_probe_is_passed_only_by_the_expected_answer(
    probe: dict[str, object], rows: list[tuple[object, ...]], wrong: str | None
) -> None:
    assert judge_probe(ProbeSettings.model_validate({"sql": "SELECT 1", **probe}), rows) == wrong


def test_what_is_expected_is_the_median_by_byte_where_bytes_are_moved() -> None:
    history = [
        Timing("receive", 10, 100),
        Timing("receive", 30, 100),
        Timing("receive", 20, 100),
        Timing("recover", 4, 0),
        Timing("recover", 6, 0),
    ]
    assert expected_seconds("receive", 1000, history) == 200
    assert expected_seconds("recover", 0, history) == 5
    assert expected_seconds("replay", 0, history) is None
    assert expected_seconds("recover", 10, history) is None


def evidence(*outcomes: Outcome, drill_id: str = "20261120T101112Z-7f3a", instance: str = "main") -> Evidence:
    began = datetime(2026, 11, 20, 10, 11, 12, tzinfo=UTC)
    return Evidence(
        drill_id=drill_id,
        instance=instance,
        repository_id="id-1",
        requested="latest",
        backup_id="20261119T101112Z-7f3a",
        seed=1,
        host="h",
        started=began,
        finished=began + timedelta(seconds=9),
        tool_version="1",
        zfs_version="z",
        server_version="s",
        position="p",
        steps=(StepPart(kind="receive", what="w", seconds=2, size=10),),
        checks=tuple(
            CheckPart(kind="table", what=str(number), outcome=outcome) for number, outcome in enumerate(outcomes)
        ),
    )


@pytest.mark.parametrize(
    ("checks", "outcome", "code"),
    [
        ((Outcome.PASSED, Outcome.PASSED), Outcome.PASSED, 0),
        ((Outcome.PASSED, Outcome.FAILED), Outcome.FAILED, ConsistencyError.exit_code),
        ((Outcome.FAILED, Outcome.DAMAGED, Outcome.PASSED), Outcome.DAMAGED, DamagedError.exit_code),
        ((), Outcome.FAILED, ConsistencyError.exit_code),
    ],
)
def test_a_drill_is_as_good_as_its_worst_check_and_without_one_it_failed(
    checks: tuple[Outcome, ...], outcome: Outcome, code: int
) -> None:
    drilled = evidence(*checks)
    assert (drilled.outcome, job.exit_code(drilled)) == (outcome, code)


def test_evidence_is_written_once_and_read_back(tmp_path: Path) -> None:
    repository = Repository.open_or_create(LocalStore(tmp_path), "", "id-1")
    first = evidence(Outcome.PASSED)
    assert drills.write(repository, first) == "main/drills/20261120T101112Z-7f3a-1.json"
    assert drills.write(repository, first) == "main/drills/20261120T101112Z-7f3a-1.json"
    with pytest.raises(ConsistencyError, match="same id"):
        drills.write(repository, evidence(Outcome.FAILED))
    second = evidence(Outcome.FAILED, drill_id="20261121T101112Z-7f3a")
    drills.write(repository, second)
    assert [(one.drill_id, one.sequence) for one in drills.newest(repository, "main", 10)] == [
        (first.drill_id, 1),
        (second.drill_id, 2),
    ]
    assert drills.timings([first]) == [Timing("receive", 2, 10)]
    assert drills.ids(repository, "other") == []
    with pytest.raises(NotFound, match="has no drill"):
        drills.read(repository, "main", "20261122T101112Z-7f3a")


def test_evidence_that_was_altered_or_moved_is_damaged_and_hides_no_other(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    repository = Repository.open_or_create(store, "", "id-1")
    drills.write(repository, evidence(Outcome.PASSED))
    body = store.get("main/drills/20261120T101112Z-7f3a-1.json")
    store.put("main/drills/20261121T101112Z-7f3a.json", body)
    store.put("main/drills/20261122T101112Z-7f3a.json", rewritten(body, (b'"}', b""), (b"}]", b"")))
    for drill_id, text in (("20261121T101112Z-7f3a", "belongs to drill"), ("20261122T101112Z-7f3a", "cannot be read")):
        with pytest.raises(DamagedError, match=text):
            drills.read(repository, "main", drill_id)
    assert [len(drills.newest(repository, "main", count)) for count in (1, 10)] == [1, 1]


def test_a_drill_under_a_future_id_hides_no_later_ones(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    repository = Repository.open_or_create(store, "", "id-1")
    drills.write(repository, evidence(Outcome.PASSED, drill_id="20361120T101112Z-7f3a"))
    for day in range(10, 15):
        drills.write(repository, evidence(Outcome.FAILED, drill_id=f"202611{day}T101112Z-7f3a"))
    assert {one.outcome for one in drills.newest(repository, "main", 5)} == {Outcome.FAILED}
    assert drills.read(repository, "main", "latest").drill_id == "20261114T101112Z-7f3a"
    first = store.get("main/drills/20361120T101112Z-7f3a-1.json")
    store.put("main/drills/20361120T101112Z-7f3a-9.json", first)
    assert drills.past(repository, "main", 5).unreadable == ("20361120T101112Z-7f3a",)
    assert {one.outcome for one in drills.newest(repository, "main", 5)} == {Outcome.FAILED}


@pytest.mark.parametrize(
    ("text", "flavour"),
    [
        ("mysqldump  Ver 9.7.4-2 for Linux on x86_64 ((Debian))", Flavour.MYSQL),
        ("mysqldump  Ver 10.13 Distrib 5.7.44, for Linux (x86_64)", Flavour.MYSQL),
        ("innochecksum  Ver 8.0.36 for Linux on x86_64 (MySQL Community Server - GPL)", Flavour.MYSQL),
        ("mariadb-dump from 11.8.6-MariaDB, client 10.19 for debian-linux-gnu (x86_64)", Flavour.MARIADB),
        ("mysqldump  Ver 10.19 Distrib 10.11.6-MariaDB, for debian-linux-gnu (x86_64)", Flavour.MARIADB),
        ("innochecksum Ver 10.11.6, for debian-linux-gnu (x86_64)", Flavour.MARIADB),
    ],
)
def test_a_program_tells_which_family_it_is_of(text: str, flavour: Flavour) -> None:
    assert [f for f in Flavour if is_version_of(text, f)] == [flavour]


def test_a_program_of_the_other_family_is_passed_over(tmp_path: Path) -> None:
    from zsnapdb.config.settings import ServerSettings

    for folder, text in (
        ("own", "mysqldump  Ver 8.4.0 for Linux"),
        ("other", "mysqldump from 11.8.6-MariaDB, client 10.19"),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mysqldump").write_text(f"#!/bin/sh\necho '{text}'\n")
        (tmp_path / folder / "mysqldump").chmod(0o755)
    binary = tmp_path / "mysqld"
    program = programs.find(MYSQL.dump_programs, ServerSettings(programs=tmp_path / "own"), Flavour.MYSQL, binary)
    assert program == tmp_path / "own" / "mysqldump"
    with pytest.raises(PreflightError, match="of the other family"):
        programs.find(MYSQL.dump_programs, ServerSettings(programs=tmp_path / "other"), Flavour.MYSQL, binary)


@pytest.mark.parametrize(
    ("status", "words", "damage"), [(0, "", None), (1, "Fail: page 6 invalid", "Fail: page 6 invalid")]
)
def test_innochecksum_is_asked_for_the_range_and_its_word_is_damage(
    tmp_path: Path, status: int, words: str, damage: str | None
) -> None:
    program, seen = tmp_path / "innochecksum", tmp_path / "seen"
    program.write_text(f"#!/bin/sh\necho \"$@\" >{seen}\necho '{words}' >&2\nexit {status}\n")
    program.chmod(0o755)
    assert programs.damaged_pages(program, Path("/d/t.ibd"), 3, 9, timeout=120) == damage
    assert seen.read_text() == "--start-page=3 --end-page=9 /d/t.ibd\n"


def test_damage_in_a_batch_is_told_of_its_file(tmp_path: Path) -> None:
    program = tmp_path / "innochecksum"
    program.write_text('#!/bin/sh\ncase "$*" in *bad*) echo "Fail: page 6 invalid" >&2; exit 1;; esac\n')
    program.chmod(0o755)
    files = [Path("/d/a.ibd"), Path("/d/bad.ibd"), Path("/d/z.ibd")]
    assert programs.damaged_files(program, files, timeout=120) == {Path("/d/bad.ibd"): "Fail: page 6 invalid"}
    assert programs.damaged_files(program, [files[0], files[2]], timeout=120) == {}


def test_innochecksum_that_cannot_read_is_an_error_not_damage(tmp_path: Path) -> None:
    from zsnapdb.base.errors import CommandError

    program = tmp_path / "innochecksum"
    program.write_text("#!/bin/sh\necho 'Error: /d/t.ibd cannot be found' >&2\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(CommandError, match="cannot be found"):
        programs.damaged_pages(program, Path("/d/t.ibd"), 0, None, timeout=120)
    with pytest.raises(CommandError, match="cannot be found"):
        programs.damaged_files(program, [Path("/d/s.ibd"), Path("/d/t.ibd")], timeout=120)


@pytest.mark.parametrize(
    "text",
    [
        "Can't open file: 'orders' (errno: 24 \"Too many open files\")",
        "Out of resources when opening file './shop/x.MAD' (Errcode: 24 \"Too many open files\")",
        "Error writing file './shop/x' (OS errno 28 - No space left on device)",
        "Out of memory; check if mysqld or some other process uses all available memory",
    ],
)
def test_a_table_that_the_server_lacks_resources_for_is_not_damaged(text: str) -> None:
    assert lacks_resources(text)


@pytest.mark.parametrize("text", ["Table 'x' is marked as crashed (errno: 145)", "errno: 126", "Corrupt", "errno: 240"])
def test_a_damaged_table_stays_damaged(text: str) -> None:
    assert not lacks_resources(text)
