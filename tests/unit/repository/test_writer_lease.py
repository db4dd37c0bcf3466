"""One owner at a time, whatever clocks, answers and processes do."""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.support.faulty_store import Fault, FaultyStore
from tests.unit.support.s3 import bucket, s3, s3_that_ignores
from zsnapdb.base.errors import (
    BusyError,
    ChangedError,
    ExistsError,
    LeaseError,
    NotFound,
    PreflightError,
    RepositoryError,
)
from zsnapdb.repository import writer_lease as leases
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.writer_lease import FREE, Holder, WriterLease, holder, lease
from zsnapdb.store.base import Body, Store
from zsnapdb.store.layers import Layer, Pauses, RetryingStore
from zsnapdb.store.local import LocalStore

KEY = "main/writer.lock"


class Clock:
    """A steady clock that sleeping moves on; something may happen at each step."""

    def __init__(self) -> None:
        self.now = 0.0
        self.at_step: Callable[[], None] = lambda: None

    def steady(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.at_step()


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "local":
        yield LocalStore(tmp_path)
        return
    with bucket():
        yield s3()


@pytest.fixture
def repository(store: Store) -> Repository:
    return Repository(store, "", "id")


def foreign(**changes: object) -> Holder:
    fields = {
        "owner": "them",
        "host": "db2",
        "pid": 7,
        "process": "another kernel",
        "doing": "backing up",
        "since": "then",
        "beat": 1,
        "repository_id": "id",
        "name": "main/writer",
    }
    return Holder(**{**fields, "expires": "2020-01-01T00:00:00Z", "seconds": 30.0, **changes})  # type: ignore[arg-type]


def take(
    repository: Repository,
    clock: Clock | None = None,
    lines: list[str] | None = None,
    name: str = "main/writer",
    patience: float = 0.0,
) -> contextlib.AbstractContextManager[WriterLease]:
    used = clock or Clock()
    return lease(
        repository,
        name,
        doing="testing",
        tell=(lines if lines is not None else []).append,
        steady=used.steady,
        sleep=used.sleep,
        patience=patience,
    )


def test_a_lease_is_had_shown_confirmed_and_given_back(repository: Repository) -> None:
    with take(repository) as owned:
        owned.confirm()
        shown = holder(repository, "main/writer")
        assert shown is not None
        assert (shown.doing, shown.beat) == ("testing", 2)
    assert holder(repository, "main/writer") is None
    lines: list[str] = []
    with take(repository, lines=lines):
        pass
    assert lines == []


def test_a_living_owner_is_never_displaced_whatever_its_clock_says(store: Store, repository: Repository) -> None:
    """Its `expires` is long past by our clock: one of the two steps or is wrong. Its beats count."""
    store.put(KEY, foreign().encode())
    clock = Clock()

    def beat() -> None:
        if clock.now >= 10:
            store.put(KEY, foreign(beat=2).encode())

    clock.at_step = beat
    with pytest.raises(BusyError, match="process 7 on db2, backing up since then"), take(repository, clock):
        pass
    assert clock.now <= 12
    assert Holder.parse(store.read_version(KEY)).owner == "them"


def test_a_silent_owner_is_displaced_after_its_time_and_this_is_told(store: Store, repository: Repository) -> None:
    """Even if `expires` is far in the future: its clock, or ours, was set back."""
    store.put(KEY, foreign(expires="2099-01-01T00:00:00Z").encode())
    clock = Clock()
    lines: list[str] = []
    with take(repository, clock, lines):
        assert 30 <= clock.now <= 33
    assert "waiting up to 30 s" in lines[0]
    assert "taking over from process 7 on db2" in lines[1]


def test_a_process_of_this_host_that_has_ended_is_not_waited_for(tmp_path: Path) -> None:
    repository = Repository(LocalStore(tmp_path), "", "id")
    code = (
        "import os, sys; from pathlib import Path; from zsnapdb.repository.repository import Repository;"
        " from zsnapdb.repository.writer_lease import lease; from zsnapdb.store.local import LocalStore;"
        " m = lease(Repository(LocalStore(Path(sys.argv[1])), '', 'id'), 'main/writer', doing='x', tell=print);"
        " m.__enter__(); os._exit(9)"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], cwd=Path(__file__).parents[3], check=False
        ).returncode
        == 9
    )
    clock = Clock()
    lines: list[str] = []
    with take(repository, clock, lines):
        assert clock.now == 0
    assert "it has ended" in lines[0]


def test_a_process_of_this_host_that_lives_is_watched(repository: Repository) -> None:
    with (
        lease(repository, "main/writer", doing="first", tell=print, seconds=6.0),
        pytest.raises(BusyError, match="first"),
    ):
        lease(repository, "main/writer", doing="second", tell=print, seconds=6.0).__enter__()


def test_of_many_that_see_a_silent_owner_one_takes_over(store: Store, repository: Repository) -> None:
    store.put(KEY, foreign(seconds=0.2).encode())
    got, refused = [], []
    done = threading.Event()

    def contend(number: int) -> None:
        try:
            with lease(repository, "main/writer", doing=f"{number}", tell=lambda text: None, seconds=18.0):
                got.append(number)
                done.wait(120)
        except BusyError:
            refused.append(number)
            if len(refused) == 5:
                done.set()

    threads = [threading.Thread(target=contend, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(got), len(refused)) == (1, 5)


def test_an_owner_that_was_displaced_finds_out_before_it_calls_anything_good(
    store: Store, repository: Repository
) -> None:
    with take(repository) as owned:
        store.put(KEY, foreign().encode())
        owned.check()  # nothing is known yet ...
        with pytest.raises(LeaseError, match="was lost to process 7 on db2"):
            owned.confirm()  # ... and a renewal shows it
        with pytest.raises(LeaseError):
            owned.check()
    assert Holder.parse(store.read_version(KEY)).owner == "them"


def test_the_background_finds_a_loss_by_itself(store: Store, repository: Repository) -> None:
    with lease(repository, "main/writer", doing="x", tell=print, seconds=0.15) as owned:
        waited = threading.Event()
        for _ in range(200):
            # Unconditional, so a renewal at the same moment may overwrite it: then it is written again.
            store.put(KEY, foreign().encode())
            waited.wait(0.05)
            try:
                owned.check()
            except LeaseError:
                return
    raise AssertionError("ten seconds of a lease of 0.15 s, and nothing was noticed")


def test_a_lease_removed_by_hand_is_lost(store: Store, repository: Repository) -> None:
    with take(repository) as owned:
        store.delete(KEY)
        with pytest.raises(LeaseError, match="removed by hand"):
            owned.confirm()


class _NotFoundNorAbsent(Layer):
    """A store that keeps versions and takes a removed object for one that is there, when it is written."""

    def put(self, key: str, body: Body, *, only_if_absent: bool = False, sha256: str | None = None) -> None:
        raise ExistsError(f"{key} is there")


def test_a_lease_that_is_there_and_not_there_is_an_error_and_no_endless_loop(store: Store) -> None:
    clock = Clock()
    with (
        pytest.raises(RepositoryError, match="missing when it is read"),
        take(Repository(_NotFoundNorAbsent(store), "", "id"), clock),
    ):
        pytest.fail("nobody can have this lease")
    assert 0 < clock.now < 60


class Faulty:
    """A store in front of another one whose answers can be lost, or that cannot be reached."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.lose_answers = False
        self.unreachable = False

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.store, name)

        def call(*args: object, **named: object) -> object:
            if self.unreachable:
                raise RepositoryError("the network is gone")
            answer = method(*args, **named)
            if self.lose_answers and name in ("put", "replace"):
                # The client repeated the request after the lost answer, and met its own object.
                method_again = getattr(self.store, name)
                try:
                    method_again(*args, **named)
                except Exception as error:
                    raise error from None
                raise ChangedError("the first attempt was done; the second was refused")
            return answer

        return call


def test_an_answer_that_was_lost_is_not_taken_for_a_loss(store: Store) -> None:
    faulty = Faulty(store)
    repository = Repository(faulty, "", "id")
    faulty.lose_answers = True
    with take(repository) as owned:
        owned.confirm()
        owned.confirm()
        owned.check()
    faulty.lose_answers = False
    assert holder(repository, "main/writer") is None


def test_a_store_that_cannot_be_asked_is_no_loss_but_confirms_nothing(store: Store) -> None:
    faulty = Faulty(store)
    repository = Repository(faulty, "", "id")
    with take(repository) as owned:
        faulty.unreachable = True
        with pytest.raises(RepositoryError, match="network"):
            owned.confirm()
        owned.check()
        faulty.unreachable = False
        owned.confirm()


class _Before(Layer):
    """A store that another process uses just before the first write of this one."""

    def __init__(self, store: Store, other: Callable[[], object]) -> None:
        super().__init__(store)
        self.others = [other]

    def _before(self) -> None:
        while self.others:
            self.others.pop()()

    def put(self, key: str, body: Body, *, only_if_absent: bool = False, sha256: str | None = None) -> None:
        self._before()
        super().put(key, body, only_if_absent=only_if_absent, sha256=sha256)

    def replace(self, key: str, body: Body, *, tag: str) -> None:
        self._before()
        super().replace(key, body, tag=tag)


@pytest.mark.parametrize(("header", "found"), [("If-Match", (foreign(state=FREE),)), ("If-None-Match", ())])
def test_a_store_that_loses_a_condition_never_lets_two_writers_in(header: str, found: tuple[Holder, ...]) -> None:
    """Both read that the lease was given back, or that there is none, before either writes its own."""
    with bucket(), contextlib.ExitStack() as first:
        for lease_before in found:
            s3().put(KEY, lease_before.encode())
        inside: list[str] = []

        def other() -> None:
            first.enter_context(take(Repository(s3_that_ignores(header), "", "id")))
            inside.append("first")

        store = _Before(s3_that_ignores(header), other)
        with contextlib.suppress(RepositoryError), take(Repository(store, "", "id")):
            inside.append("second")
    assert len(inside) < 2


@pytest.mark.parametrize("header", ["If-Match", "If-None-Match"])
def test_a_lease_that_keeps_no_other_writer_out_is_refused_with_the_fault_of_the_store(header: str) -> None:
    with bucket():
        repository = Repository(s3_that_ignores(header), "", "id")
        for _ in range(2 if header == "If-Match" else 1):
            with (
                pytest.raises(RepositoryError, match=f"does not exclude other writers.*{header}") as caught,
                take(repository),
            ):
                raise AssertionError
            assert (caught.value.exit_code, "use an S3 server with conditional" in caught.value.hint) == (6, True)
            assert holder(Repository(s3(), "", "id"), "main/writer") is None, "it was given back"


@pytest.mark.parametrize("fault", [Fault.UNREACHED, Fault.ANSWER_LOST])
def test_a_good_store_whose_first_answers_are_lost_is_not_taken_for_one_that_looks_at_no_condition(
    store: Store, fault: Fault
) -> None:
    faults = {call: [fault, Fault.FINE] * 50 for call in ("put", "replace", "read_version")}
    repository = Repository(RetryingStore(FaultyStore(store, faults), 20, pauses=Pauses(first=0.0001)), "", "id")
    for _ in range(2):
        with take(repository) as owned:
            owned.confirm()
            leases.prove_exclusive(repository, "main/writer")
            owned.confirm()
        assert holder(repository, "main/writer") is None


def test_the_proof_of_a_lease_that_was_taken_before_changes_nothing_in_a_good_store(
    store: Store, repository: Repository
) -> None:
    with pytest.raises(NotFound):
        leases.prove_exclusive(repository, "main/writer")
    store.put(KEY, foreign().encode())
    leases.prove_exclusive(repository, "main/writer")
    assert store.get(KEY) == foreign().encode()


def test_the_proof_of_a_lease_finds_a_store_that_loses_the_condition() -> None:
    with bucket():
        s3().put(KEY, foreign().encode())
        with pytest.raises(PreflightError, match=r"If-Match.*main/writer\.lock"):
            leases.prove_exclusive(Repository(s3_that_ignores("If-Match"), "", "id"), "main/writer")


@pytest.mark.parametrize("body", [b"", b"{}", b"null", b'{"owner": 1}'])
def test_a_lease_that_cannot_be_read_is_waited_for_like_any_other(
    store: Store, repository: Repository, body: bytes
) -> None:
    store.put(KEY, body)
    clock = Clock()
    with take(repository, clock):
        assert clock.now >= leases.SECONDS


def test_leases_of_other_names_do_not_meet(store: Store, repository: Repository) -> None:
    with take(repository), take(repository, name="main/binlogs"), take(repository, name="main2/writer"):
        pass
    assert json.loads(store.get("main2/writer.lock").splitlines()[0])["state"] == FREE


def test_a_run_that_may_wait_takes_the_lease_when_its_living_owner_gives_it_back(
    store: Store, repository: Repository
) -> None:
    store.put(KEY, foreign().encode())
    clock, beats = Clock(), itertools.count(2)

    def beat() -> None:
        state = FREE if clock.now > 100 else foreign().state
        store.put(KEY, replace(foreign(beat=next(beats)), state=state).encode())

    clock.at_step = beat
    with take(repository, clock, patience=3600):
        assert 100 < clock.now < 110
