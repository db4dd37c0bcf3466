"""View of how a client reaches a clone. It contains the password, for the person who requests it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import ClassVar

from zsnapdb.documents.clone import LoginDocument
from zsnapdb.jobs.clone.credentials import Login
from zsnapdb.report.view import View


@dataclass(frozen=True)
class LoginView(View):
    """How a client reaches a clone: a URL, or shell commands that set the environment of clients on this host."""

    login: Login
    as_environment: bool = False
    kind: ClassVar[str] = "clone-login"
    document_class = LoginDocument
    read_from = "login"

    def text(self) -> str:
        if not self.as_environment:
            return self.login.dsn
        return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in self.login.environment().items())
