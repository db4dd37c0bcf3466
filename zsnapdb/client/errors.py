"""What a program is told when a clone cannot be had or changed."""

from __future__ import annotations


class CloneCommandError(Exception):
    """A command ended with an exit code that is not 0: what it said, what helps, and the code.

    `code` is the word for the kind of error ("" if there is none), `status` that of HTTP, if HTTP was the way.
    """

    def __init__(
        self, message: str, hint: str = "", exit_code: int = 1, *, code: str = "", status: int | None = None
    ) -> None:
        super().__init__(f"{message}\nhint: {hint}" if hint else message)
        self.message, self.hint, self.exit_code, self.code, self.status = message, hint, exit_code, code, status
