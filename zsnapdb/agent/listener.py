"""The agent's port, which opens, moves and closes as the configuration says at each reading."""

from __future__ import annotations

from zsnapdb.agent.web import Answers, WebServer
from zsnapdb.config.agent import HttpSettings


class Listener:
    """Answers by HTTP where the settings say; nowhere before the first `use`, and after `close`."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._settings: HttpSettings | None = None
        self._server: WebServer | None = None

    @property
    def port(self) -> int | None:
        """The port on which it listens; None if it does not."""
        return self._server.port if self._server is not None else None

    def use(self, settings: HttpSettings | None) -> None:
        """Listen where these settings say, and nowhere else. Certificates and tokens are read again.

        ConfigError if that is impossible: another address stays in use then; the same one is closed.
        """
        has_files = settings is not None and (settings.certificate is not None or settings.token_file is not None)
        if self._server is not None and settings == self._settings and not has_files:
            return
        old, before = self._server, self._settings
        is_same = settings is not None and before is not None and _place(settings) == _place(before)
        if is_same:
            self.close()
            old = None
        opened = WebServer(settings, self._answers) if settings is not None else None
        if opened is not None:
            opened.start()
        if old is not None:
            old.close()
        self._server, self._settings = opened, settings

    def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()
        self._server = self._settings = None


def _place(settings: HttpSettings) -> tuple[str, int]:
    return settings.address, settings.port
