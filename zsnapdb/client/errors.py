"""Errors of commands on clones, for use in programs."""

from __future__ import annotations


class CloneCommandError(Exception):
    """A command ended with an exit code other than 0. The error contains the command's message, hint and exit code.

    The attribute `code` is the kind of the error ("" if there is none). The attribute `status` is the HTTP status if
    the request was sent over HTTP.
    """

    def __init__(
        self, message: str, hint: str = "", exit_code: int = 1, *, code: str = "", status: int | None = None
    ) -> None:
        super().__init__(f"{message}\nhint: {hint}" if hint else message)
        self.message, self.hint, self.exit_code, self.code, self.status = message, hint, exit_code, code, status
