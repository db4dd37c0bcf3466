"""Room for a set is judged and promised before anything of it is received."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from zsnapdb.base import patterns
from zsnapdb.base.errors import BusyError, PreflightError
from zsnapdb.config.settings import CloneSettings, Settings
from zsnapdb.jobs.base import run_locks
from zsnapdb.jobs.clone import cached_sets, expected_clone, locks, space_limits
from zsnapdb.jobs.dataset_copies.properties import CopyPhase
from zsnapdb.planning.backup.send_form import SendForm
from zsnapdb.planning.clone.space_limits import received_quota
from zsnapdb.zfs import datasets

HOME = "tank/zsnapdb/clones"
MIB = 1 << 20
GIB = 1 << 30


class Pool:
    """Free bytes of a pool, which each new anchor with a reservation takes, as ZFS does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free: int) -> None:
        self.free, self.made, self.phase = free, dict[str, dict[str, str]](), CopyPhase.READY
        for name, fake in {"available": lambda _: self.free, "exists": lambda _: False, "create": self.create}.items():
            monkeypatch.setattr(datasets, name, fake)
        monkeypatch.setattr(cached_sets, "known_sets", lambda *_: SimpleNamespace(copies=self.sets()))

    def create(self, anchor: str, options: dict[str, str]) -> None:
        self.free -= int(options["reservation"])
        self.made[anchor] = options

    def sets(self) -> list[Any]:
        return [
            SimpleNamespace(
                name=anchor.rpartition("/")[2],
                caused_by=options.get("zsnapdb:caused-by", ""),
                most_bytes=int(options["reservation"]),
                phase=self.phase,
            )
            for anchor, options in self.made.items()
        ]


def settings(**limits: int) -> Settings:
    return Settings.model_construct(instance={}, repository={}, clones=CloneSettings(**limits))


def promised(configured: Settings, set_id: str, needed: int) -> bool:
    try:
        space_limits.reserve_set_space(configured, HOME, set_id, {}, needed)
    except PreflightError:
        return False
    return True


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(
        locks, "names_and_ports", lambda: run_locks.exclusive("c", doing="x", patience=60.0, folder=tmp_path)
    )


def test_eight_at_once_cannot_be_promised_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool(monkeypatch, free=3 * GIB)
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda n: promised(settings(free_floor=GIB), f"set-{n}", GIB // 2), range(8)))
    assert sum(answers) == 4
    assert pool.free == GIB
    assert all(made["quota"] == made["reservation"] == str(GIB // 2) for made in pool.made.values())


@pytest.mark.parametrize("variable", [expected_clone.CAUSER_VARIABLE, patterns.SUBJECT_VARIABLE])
def test_a_set_counts_to_the_subject_and_root_has_the_floor_alone(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    pool, limited = Pool(monkeypatch, free=100 * GIB), settings(received_per_owner=GIB, free_floor=0)
    monkeypatch.setenv(variable, "anna")
    assert promised(limited, "first", GIB)
    assert not promised(limited, "second", 1)
    monkeypatch.setenv(variable, "Anna")
    assert not promised(limited, "second", 1), "another spelling is no other person"
    monkeypatch.setenv(variable, "anna")
    with pytest.raises(PreflightError, match=r"received for anna have 1\.0 GiB \(first: 1\.0 GiB\)") as refused:
        space_limits.refuse_received(limited, HOME, "second", 1)
    assert "destroy your clones" in str(refused.value.hint)
    monkeypatch.setenv(variable, "bob")
    assert promised(limited, "of-bob", GIB)
    monkeypatch.delenv(variable)
    assert promised(limited, "of-root", 50 * GIB)
    assert {one.name: one.caused_by for one in pool.sets()} == {"first": "anna", "of-bob": "bob", "of-root": ""}


def test_all_subjects_together_have_a_bound_that_names_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool(monkeypatch, free=100 * GIB)
    limited = settings(received_total=2 * GIB, receives=2, free_floor=0)
    for name in ("anna", "bob"):
        monkeypatch.setenv(expected_clone.CAUSER_VARIABLE, name)
        assert promised(limited, f"of-{name}", GIB)
    monkeypatch.setenv(expected_clone.CAUSER_VARIABLE, "carl")
    with pytest.raises(PreflightError, match=r"clones\.received_total, 2\.0 GiB") as refused:
        space_limits.refuse_received(limited, HOME, "of-carl", 1)
    assert (refused.value.about, "anna" in str(refused.value)) == ((), False)
    monkeypatch.delenv(expected_clone.CAUSER_VARIABLE)
    assert promised(limited, "of-root", GIB)
    monkeypatch.setenv(expected_clone.CAUSER_VARIABLE, "carl")
    pool.phase = CopyPhase.MAKING
    with pytest.raises(PreflightError, match=r"clones\.receives allows, 2") as refused:
        space_limits.refuse_received(settings(receives=2, free_floor=0), HOME, "of-carl", 1)
    assert refused.value.about == ()
    assert promised(settings(receives=3, free_floor=0), "of-carl", 1)


def test_a_subject_with_a_name_that_no_copy_has_is_no_administrator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(expected_clone.CAUSER_VARIABLE, "x" * 200)
    with pytest.raises(PreflightError):
        expected_clone.current_causer()


def test_a_set_is_not_removed_while_any_process_is_about_to_clone_it(tmp_path: Path) -> None:
    def is_free() -> bool:
        with run_locks.if_free("received", tmp_path) as free:
            return free

    first, second = (run_locks.shared("received", patience=0.0, folder=tmp_path) for _ in range(2))
    with first:
        with second:
            assert not is_free()
        assert not is_free()
    assert is_free()
    assert not list(tmp_path.iterdir())
    late = run_locks.shared("received", patience=0.0, folder=tmp_path)
    with run_locks.if_free("received", tmp_path), pytest.raises(BusyError, match="another zsnapdb is running"), late:
        pass


def test_what_is_needed_is_all_that_the_chain_brings(monkeypatch: pytest.MonkeyPatch) -> None:
    volume = SimpleNamespace(dataset="tank/mysql", send_flags=("-L",))
    chain: Any = SimpleNamespace(chain=tuple(SimpleNamespace(plain_size=n * MIB, volumes=[volume]) for n in (60, 2)))
    monkeypatch.setattr(datasets, "exists", lambda _: False)
    monkeypatch.setattr(space_limits, "form_of", lambda _: SendForm.PLAIN)
    assert space_limits.needed_for(chain) == received_quota(62 * MIB)
    sizes = {"logicalreferenced": SimpleNamespace(value="200"), "referenced": SimpleNamespace(value="100")}
    monkeypatch.setattr(datasets, "exists", lambda _: True)
    monkeypatch.setattr(datasets, "properties", lambda *_: sizes)
    assert space_limits.needed_for(chain) == received_quota(31 * MIB)
    monkeypatch.setattr(space_limits, "form_of", lambda _: SendForm.COMPRESSED)
    assert space_limits.needed_for(chain) == received_quota(62 * MIB)
