"""View of how a client reaches a clone. It contains the password, for the person who requests it."""

from __future__ import annotations

import shlex

from zsnapdb.documents.clone import LoginDocument
from zsnapdb.jobs.clone.credentials import Login
from zsnapdb.report.view import View


class LoginView(View, kind="clone-login", document=LoginDocument, read_from="login"):
    """How a client reaches a clone: a URL, or shell commands that set the environment of clients on this host."""

    login: Login
    as_environment: bool = False

    def text(self) -> str:
        if not self.as_environment:
            return self.login.dsn
        return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in self.login.environment().items())
