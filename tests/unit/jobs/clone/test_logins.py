"""A login is shown, and a password is made, for a clone that runs and whose lease lasts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from tests.unit.support.clone_pool import HOME, SOURCE, ClonePool
from zsnapdb.base.errors import PreflightError, UnknownNameError, ZsnapdbError
from zsnapdb.config.settings import CloneSettings, Settings
from zsnapdb.jobs.base.events import Silent
from zsnapdb.jobs.base.host import THIS_HOST, Host
from zsnapdb.jobs.clone import catalogue, credentials, lifecycle, logins
from zsnapdb.jobs.clone.clone_info import CloneInfo
from zsnapdb.jobs.clone.credentials import Login
from zsnapdb.mysql import accounts
from zsnapdb.planning.clone.lease import CloneLease, require_lease, stamp

SETTINGS = Settings.model_construct(
    instance={}, repository={}, clones=CloneSettings(dataset=HOME, accounts="keep", server_user=None)
)
NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


def shown(host: Host, name: str, *, new: bool) -> Login:
    if new:
        return logins.new_login(SETTINGS, host, name, Silent())
    return logins.known_login(SETTINGS, host, name)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return replace(THIS_HOST, run=tmp_path)


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch, host: Host) -> ClonePool:
    pool = ClonePool()
    pool.install(monkeypatch)
    monkeypatch.setattr("zsnapdb.jobs.base.run_locks.THIS_HOST", host)
    pool.snapshot(f"{SOURCE}@zsnapdb-20261120T100000Z-0001")
    return pool


def made(pool: ClonePool, hours: float, /, **facts: str) -> None:
    ends = stamp(datetime.now(UTC) + timedelta(hours=hours))
    facts |= {"expires": ends}
    pool.clone("ci", f"{SOURCE}@zsnapdb-20261120T100000Z-0001", revision=1, **facts)


@pytest.mark.parametrize("new", [False, True])
@pytest.mark.parametrize(
    ("hours", "facts", "error", "said"),
    [
        (1.0, {}, PreflightError, "the server of clone ci does not run"),
        (-1.0, {}, PreflightError, "the lease of clone ci ended at"),
        (1.0, {"pool": "waits", "owner": "the pool"}, PreflightError, "waits in the pool"),
        (1.0, {"phase": "making"}, PreflightError, "ci"),
    ],
)
def test_unusable_clone_has_no_login(
    pool: ClonePool, host: Host, new: bool, hours: float, facts: dict[str, str], error: type[ZsnapdbError], said: str
) -> None:
    made(pool, hours, **facts)
    with pytest.raises(error, match=said):
        shown(host, "ci", new=new)
    with pytest.raises(UnknownNameError, match="there is no clone gone"):
        shown(host, "gone", new=new)
    assert pool.commands == []


def test_login_file_of_an_expired_clone_is_not_written(pool: ClonePool, host: Host) -> None:
    made(pool, -1.0)
    with pytest.raises(PreflightError, match="the lease of clone ci ended at"):
        lifecycle.write_login(SETTINGS, host, "ci", 0, 0, host.run / "logins")
    assert not (host.run / "logins").exists()


def test_refusals_may_be_read_by_the_owner(pool: ClonePool, host: Host) -> None:
    for hours in (1.0, -1.0):
        made(pool, hours)
        with pytest.raises(ZsnapdbError) as refused:
            shown(host, "ci", new=True)
        assert refused.value.about == ("ada",)


@pytest.mark.parametrize(
    ("ends", "protected", "refused"), [(1, None, False), (0, None, True), (-1, None, True), (-1, 1, False)]
)
def test_lease_that_ended_needs_a_protection(ends: int, protected: int | None, refused: bool) -> None:
    until = NOW + timedelta(hours=protected) if protected is not None else None
    lease = CloneLease(NOW + timedelta(hours=ends), until)
    try:
        require_lease(lease, NOW, "ci", "ada")
    except PreflightError:
        assert refused
    else:
        assert not refused


class ServerOfClone:
    """The sessions of a server, and the statements that it got. Some sessions end when they are killed."""

    def __init__(self, sessions: dict[int, str]) -> None:
        self.sessions, self.statements = sessions, list[str]()

    def query(self, sql: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        self.statements.append(sql)
        if sql.startswith("KILL"):
            self.sessions.pop(int(sql.split()[1]), None)
        if sql.startswith("SELECT id"):
            wanted = parameters[0] if parameters else None
            return [(number,) for number, user in self.sessions.items() if wanted in (None, user)]
        return []


def test_sessions_of_one_user_end_and_others_stay() -> None:
    server = ServerOfClone({1: "zsnapdb_clone", 2: "zsnapdb_replica", 3: "zsnapdb_clone", 4: "app"})
    accounts.end_others(server, "zsnapdb_clone")  # type: ignore[arg-type]
    assert server.sessions == {2: "zsnapdb_replica", 4: "app"}
    accounts.end_others(server)  # type: ignore[arg-type]
    assert server.sessions == {}


@pytest.fixture
def running(pool: ClonePool, host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServerOfClone:
    """The running server of a clone `ci` with a session of its user, and a file of `zsnapdb-clone login`."""
    mount = tmp_path / "mount"
    (mount / ".zsnapdb").mkdir(parents=True)
    made(pool, 1.0, root=str(mount))
    server = ServerOfClone({7: "zsnapdb_clone", 8: "zsnapdb_replica"})
    find = catalogue.of_dataset

    @contextmanager
    def held(settings: Settings, of: Host, name: str) -> Iterator[CloneInfo]:
        yield replace(find(settings, of, name), pid=1)

    @contextmanager
    def session(_info: CloneInfo) -> Iterator[ServerOfClone]:
        yield server

    def make_users(_session: object, _clone: object, password: SecretStr) -> None:
        assert server.sessions == {8: "zsnapdb_replica"}, "its locks are gone"
        server.sessions[9] = "zsnapdb_clone"
        server.statements.append("CREATE USER")

    monkeypatch.setattr(logins, "locked_clone", held)
    monkeypatch.setattr(lifecycle, "session", session)
    monkeypatch.setattr(lifecycle, "server_of", lambda _settings, _info: _Copied())
    monkeypatch.setattr("zsnapdb.jobs.clone.isolated_start.make_users", make_users)
    monkeypatch.setattr("zsnapdb.jobs.clone.masking_requirement.refuse_unmasked", lambda _settings, _info: None)
    monkeypatch.setattr(
        "zsnapdb.mysql.process.server.write_private", lambda file, text, _user: Path(file).write_text(text)
    )
    monkeypatch.setattr(lifecycle, "forget_login", lambda name: (tmp_path / f"{name}.cnf").unlink(missing_ok=True))
    (tmp_path / "ci.cnf").write_text("the former password")
    return server


class _Copied:
    class copy:  # noqa: N801 - an attribute of a clone's server
        class settings:  # noqa: N801
            user = "mysql"


def test_new_password_is_stored_once_and_former_sessions_end(
    running: ServerOfClone, pool: ClonePool, host: Host, tmp_path: Path
) -> None:
    first, second = (shown(host, "ci", new=True) for _ in range(2))
    assert first.password != second.password
    assert (second.host, second.port, second.user) == ("127.0.0.1", 33070, "zsnapdb_clone")
    assert credentials.read(tmp_path / "mount" / ".zsnapdb" / "client.cnf") == second.password
    assert running.sessions == {8: "zsnapdb_replica"}
    assert not (tmp_path / "ci.cnf").exists()
    secret = second.password.get_secret_value()
    assert all(secret not in " ".join(words) for words in pool.commands)
    assert secret not in repr(second)
    holders = [file for file in tmp_path.rglob("*") if file.is_file() and secret in file.read_text()]
    assert [file.name for file in holders] == ["client.cnf"]
