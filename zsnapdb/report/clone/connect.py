"""View of how a client reaches a clone. It contains the password, for the person who requests it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import TypedDict

from zsnapdb.jobs.clone.credentials import Login
from zsnapdb.report.view import View


class LoginDocument(TypedDict):
    """How a client reaches a clone."""

    host: str
    port: int
    socket: str
    user: str
    password: str
    dsn: str


@dataclass(frozen=True)
class LoginView(View):
    """How a client reaches a clone: a URL, or shell commands that set the environment of clients on this host."""

    login: Login
    as_environment: bool = False
    kind: ClassVar[str] = "clone-login"

    def text(self) -> str:
        if not self.as_environment:
            return self.login.dsn
        return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in self.login.environment().items())

    def fields(self) -> LoginDocument:
        login = self.login
        return {
            "host": login.host,
            "port": login.port,
            "socket": str(login.socket),
            "user": login.user,
            "password": login.password.get_secret_value(),
            "dsn": login.dsn,
        }
