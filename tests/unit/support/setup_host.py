"""A host with a pool and one MySQL server, on which setup runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zsnapdb.base.errors import ServerError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.setup import discovery as job
from zsnapdb.jobs.setup import steps as setup_steps
from zsnapdb.mysql.process.discovery import DiscoveredProcess
from zsnapdb.notify.occasions import send_test
from zsnapdb.planning.setup.facts import (
    SetupAnswers,
)
from zsnapdb.planning.setup.plan import SetupPlan


def hears(settings: Settings, target: str) -> bool:
    """Send the test message as the command does."""
    return not send_test(settings, [target], lambda _: None)


PROCESS = DiscoveredProcess(812, "mysql", "/opt/x/mysqld", ("/run/m.sock",), "/var/lib/mysql/data")


class FakeHost:
    """A host with a pool and one MySQL on it: the accounts of its server, and the commands that were run."""

    def __init__(self, folder: Path) -> None:
        self.configuration = folder / "etc" / "zsnapdb.toml"
        self.answers = SetupAnswers(f"file://{folder / 'backups'}")
        self.passwords: dict[str, str] = {}
        self.statements: list[str] = []
        self.commands: list[str] = []
        self.fails_at = ""

    def plan(self) -> SetupPlan:
        return job.plan(self.answers, self.configuration)

    def setup(self) -> setup_steps.SetupResult:
        return setup_steps.execute(self.plan(), hears=hears)

    def step(self, name: str) -> None:
        """Do what is under way, unless this is where the test interrupts."""
        if self.fails_at and self.fails_at in name:
            raise ServerError(f"interrupted at {name}")

    def files(self) -> dict[str, bytes]:
        folder = self.configuration.parent.parent
        return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


class FakeSession:
    """A session of the fake server. CREATE USER IF NOT EXISTS leaves an account that is there as it is."""

    host: FakeHost

    def __init__(self, server: str) -> None:
        self.account = f"zsnapdb{server.removeprefix('/run/m.sock')}"

    @classmethod
    def open(cls, address: Any, password: Any) -> FakeSession:
        cls.host.step(f"log in as {address.user}")
        session = cls(str(address.socket))
        if address.user != "root" and cls.host.passwords.get(session.account) != password.get_secret_value():
            raise ServerError("access denied")
        return session

    def __enter__(self) -> FakeSession:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def close(self) -> None:
        pass

    def query(self, sql: str, parameters: Sequence[str] = ()) -> None:
        self.host.step(sql)
        self.host.statements.append(sql)
        if sql.startswith("CREATE USER IF NOT EXISTS zsnapdb@localhost"):
            self.host.passwords.setdefault(self.account, "".join(parameters))


class LookingSession(FakeSession):
    """A session that only looks, before the first change of a setup."""

    @classmethod
    def open(cls, address: Any, password: Any) -> FakeSession:
        session = cls(str(address.socket))
        if address.user != "root" and cls.host.passwords.get(session.account) != password.get_secret_value():
            raise ServerError("access denied")
        return session

    def query(self, sql: str, parameters: Sequence[str] = ()) -> Any:
        assert sql.startswith("SELECT ")
        return [(int(self.account in self.host.passwords),)]
