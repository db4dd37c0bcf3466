"""A helper that listens on a real socket, and runs a fake of zsnapdb."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from zsnapdb.agent.children import start_detached
from zsnapdb.config import settings
from zsnapdb.config.settings import Settings
from zsnapdb.serve.clone_documents import OwnedCommit
from zsnapdb.serve.command_processes import ChildRunner
from zsnapdb.serve.helper import HelperServer, bound
from zsnapdb.serve.helper_logins import LiveTokens, LoginHandler
from zsnapdb.serve.helper_messages import (
    Ending,
    FailureAnswer,
    HelperClient,
    HelperRequest,
    ResultAnswer,
    Verb,
    no_such,
)
from zsnapdb.serve.helper_request_handler import RequestHandler
from zsnapdb.serve.operations import Operations
from zsnapdb.serve.protection import ProtectionReader
from zsnapdb.serve.roles import Role
from zsnapdb.serve.tokens import CredentialBook, CredentialStore, TokenBook
from zsnapdb.verbs.requests import FleetQuery

PROGRAM = Path(__file__).with_name("fake_zsnapdb.py")
CONFIGURATION = """
[repository.store]
url = "file:///srv/backups"

[instance.main]
repository = "store"
volumes = {{ data = "tank/main" }}

[instance.secret]
repository = "store"
volumes = {{ data = "tank/secret" }}

[instance.masked]
repository = "store"
volumes = {{ data = "tank/masked" }}
masking = {{ run = ["/etc/zsnapdb/mask.sql"] }}

[serve]
per_subject = {per_subject}
ttl = "2h"
longest_lease = "1d"
commits_per_subject = 3
unmasked = ["main"]
{more}
"""


@dataclass(frozen=True)
class RecordedCall:
    """A command that the helper ran."""

    words: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass
class ServeHost:
    """The helper's host. `now` is its clock. `more` has further lines of the configuration."""

    folder: Path
    per_subject: int = 10
    uids: frozenset[int] = frozenset({os.geteuid()})
    patience: float = 20.0
    seconds: float = 10.0
    most_clients: int = 64
    most_changes: int = 8
    commits: list[OwnedCommit] = field(default_factory=list)
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    id_tokens: CredentialBook | None = None
    logins: LoginHandler | None = None
    fleet: Callable[[FleetQuery, Role], ResultAnswer] | None = None
    more: str = ""
    beats: list[str] = field(default_factory=list)
    """The clones whose users sent a heartbeat."""

    def __post_init__(self) -> None:
        (self.folder / "fake").mkdir(exist_ok=True)
        self.book = TokenBook(self.folder / "state")
        self.socket = self.folder / "run" / "helper.sock"
        self.client = HelperClient(self.socket)

    def token(self, subject: str, role: Role = Role.DEVELOPER, seconds: float = 3600.0) -> str:
        """Return the text of a new token."""
        return self.book.create(subject, role, seconds, self.now).text.get_secret_value()

    def pass_time(self, seconds: float) -> None:
        """Advance the clock."""
        self.now += timedelta(seconds=seconds)

    def settings(self) -> Settings:
        return settings.parse(CONFIGURATION.format(per_subject=self.per_subject, more=self.more), "the test")

    @contextmanager
    def helper(self) -> Iterator[RequestHandler]:
        """Answer on the socket during the block."""
        stop = threading.Event()
        start = partial(start_detached, program=(sys.executable, "-I", "-S", str(PROGRAM)))
        environment = {"FAKE_FOLDER": str(self.folder / "fake")}
        runner = ChildRunner(start, environment, self.most_changes)
        operations = Operations(self.folder / "state" / "operations", lambda: self.now)
        live = LiveTokens(self.book, lambda: self.settings().serve.issuer)
        credentials = CredentialStore(live, self.id_tokens) if self.id_tokens is not None else live
        reader = ChildRunner(start, environment, patience=10, grace=5)
        desk = RequestHandler(
            settings=self.settings,
            tokens=credentials,
            operations=operations,
            look=self.look,
            commits=lambda: tuple(self.commits),
            run=runner,
            protection=ProtectionReader(reader),
            beat=self.beats.append,
            now=lambda: self.now,
            logins=self.logins,
            fleet=self._fleet,
            patience=self.patience,
        )
        with bound(self.socket, lambda _: None) as listener:
            server = HelperServer(listener, desk, self.uids, self.seconds, self.most_clients)
            thread = threading.Thread(target=server.serve, args=(stop,))
            thread.start()
            try:
                yield desk
            finally:
                stop.set()
                thread.join()
                runner.stop()
                reader.stop()
                operations.settle(30)

    def _fleet(self, asked: FleetQuery, role: Role) -> ResultAnswer:
        if self.fleet is None:
            raise no_such("view of a fleet", "fleet.toml")
        return self.fleet(asked, role)

    def ask(self, token: str, verb: Verb) -> Ending:
        return self.client.ask(HelperRequest(token=token, verb=verb))

    def done(self, token: str, verb: Verb) -> ResultAnswer:
        """Send a request that is answered immediately."""
        answer = self.ask(token, verb)
        assert isinstance(answer, ResultAnswer), answer
        return answer

    def refused(self, token: str, verb: Verb) -> FailureAnswer:
        """Send a request that is refused."""
        answer = self.ask(token, verb)
        assert isinstance(answer, FailureAnswer), answer
        return answer

    def send(self, line: bytes) -> list[dict[str, object]]:
        """Send bytes to the helper, and return the lines of its answer."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as raw:
            raw.settimeout(20)
            raw.connect(str(self.socket))
            answer = b""
            # A helper that refuses closes before it has read everything.
            with suppress(BrokenPipeError, ConnectionResetError):
                raw.sendall(line)
            with suppress(ConnectionResetError):
                while part := raw.recv(65536):
                    answer += part
        return [json.loads(one) for one in answer.splitlines()]

    def look(self) -> ResultAnswer:
        """Return the JSON document with the list of clones."""
        with (self.folder / "fake" / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            file = self.folder / "fake" / "clones"
            return ResultAnswer(document={"clones": json.loads(file.read_text()) if file.exists() else []})

    def clones(self, *clones: Mapping[str, object]) -> None:
        """Set the existing clones."""
        usual = {"created": "1", "guid": "1", "set": None, "waits": False, "pid": None, "instance": "main"}
        whole = [{"id": one["name"], **usual, **one} for one in clones]
        (self.folder / "fake" / "clones").write_text(json.dumps(whole))

    def let(self, name: str, text: str) -> None:
        """Set the behaviour of the program (`fake_zsnapdb.py`)."""
        (self.folder / "fake" / name).write_text(text)

    def waits_for(self, name: str) -> None:
        """Wait until the program has written a file."""
        deadline = time.monotonic() + 20
        while not (self.folder / "fake" / name).exists():
            assert time.monotonic() < deadline, name
            time.sleep(0.02)

    def prints(self, command: str, document: object, code: int = 0) -> None:
        """Let a read-only command print the document, and exit with the code."""
        self.let(command, f"{code}\n{json.dumps(document)}")

    def calls(self) -> Sequence[RecordedCall]:
        """Return the commands that were run."""
        file = self.folder / "fake" / "calls"
        rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [RecordedCall(tuple(row["words"]), row["environment"]) for row in rows]

    def changes(self) -> Sequence[RecordedCall]:
        """Return the commands that were run and change something."""
        return [one for one in self.calls() if one.words[0] == "clone" and one.words[1] != "logs"]
