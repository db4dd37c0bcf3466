"""Runs the dump program on an ephemeral server: into a file, or into a live server."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from zsnapdb.base.errors import ConsistencyError, ExistsError
from zsnapdb.jobs.base.random_values import fresh_password
from zsnapdb.jobs.server_copy.client_file import client_file
from zsnapdb.jobs.trial.server_checks import Isolated
from zsnapdb.mysql.process import programs
from zsnapdb.mysql.session import Address
from zsnapdb.mysql.session_settings import global_statement
from zsnapdb.mysql.variables import global_variables
from zsnapdb.planning.family import family
from zsnapdb.planning.server_copy.answering import only_on_server
from zsnapdb.planning.trial.dump import HISTORY_OPTION, DumpRuns, objection_to_history

_UNTIMED = "net_write_timeout = 3600 /*M!100500 , SESSION max_statement_time = 0*/"
_LOADING = ("sql_safe_updates = 0", "completion_type = 0", "autocommit = 1", "net_read_timeout = 3600", _UNTIMED)
"""Settings of the session that loads, which a dump does not set: with completion_type = RELEASE its COMMIT ends it."""
_END_OF_DUMP = b"-- Dump completed"


@dataclass(frozen=True)
class Tools:
    """The dump program and the client of the server's family."""

    dump: Path
    client: Path

    def objection_to_history(self, target_version: str | None) -> str | None:
        """Return why the old versions of rows cannot be dumped for that server (None: a file), None if they can."""
        has_option = programs.has_option(self.dump, HISTORY_OPTION)
        return objection_to_history(self.dump.name, has_option=has_option, target_version=target_version)


@dataclass(frozen=True)
class DumpLogin:
    """A live server as the client program logs in to it. `identity` are the variables by which it is recognized."""

    address: Address
    password: SecretStr
    identity: Mapping[str, str]


def _login(isolated: Isolated) -> contextlib.AbstractContextManager[Path]:
    """Return the option file of the dump program, for a block. ConsistencyError if another server answers there.

    The ephemeral server takes every account, for it runs without accounts (Access.PRIVATE_SOCKET). Any other server
    refuses this one, whose name and password are made here.
    """
    with isolated.session() as session:
        session.query(global_statement())
        datadir = Path(global_variables(session, ("datadir",))["datadir"])
    if datadir != isolated.copy.datadir:
        raise ConsistencyError(
            f"the server at {isolated.identity.socket} has the data directory {datadir}, not {isolated.copy.datadir}",
            hint="nothing was dumped; run the command again",
        )
    account = Address(user=f"zsnapdb_{secrets.token_hex(8)}", socket=Path(isolated.identity.socket))
    return client_file(account, fresh_password())


def _argv(isolated: Isolated, tools: Tools, login: Path, words: Sequence[str]) -> list[str]:
    # A dump must not drop a table: it may be loaded into a server that has a table of that name.
    common = ["--skip-add-drop-table", "--single-transaction", "--quick", "--hex-blob", "--no-tablespaces"]
    return [str(tools.dump), f"--defaults-file={login}", *common, *family(isolated.copy.flavour).dump_options, *words]


def write_file(isolated: Isolated, tools: Tools, dump: DumpRuns, path: Path, timeout: float) -> None:
    """Dump into a new file, readable only by its owner.

    The file gets its name only when it is complete. An existing file is never overwritten.
    """
    partial = path.with_name(f".{path.name}.writing")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "r+b", buffering=0) as file, _login(isolated) as login:
            for words in dump.runs:
                programs.run(_argv(isolated, tools, login, words), stdout=file, timeout=timeout)
                file.seek(max(0, os.fstat(descriptor).st_size - 200))
                if _END_OF_DUMP not in file.read():
                    raise ConsistencyError(
                        f"the dump in {partial} is not complete", hint="it was removed; check whether the disk is full"
                    )
            os.fsync(descriptor)
        try:
            os.link(partial, path)
        except FileExistsError:
            raise ExistsError(
                f"{path} was created in the meantime", hint="name another file; nothing is overwritten"
            ) from None
    finally:
        partial.unlink(missing_ok=True)


def load(isolated: Isolated, tools: Tools, dump: DumpRuns, login: DumpLogin, schema: str, timeout: float) -> None:
    """Dump from the ephemeral server into the schema of the live server. `timeout` is in seconds, for each run."""
    with (
        client_file(login.address, login.password, only_on_server(login.identity, *_LOADING)) as target,
        _login(isolated) as source,
    ):
        # In binary mode a client that reads a pipe knows no commands of its own but `delimiter` (refman 8.4, "mysql
        # Client Options"; MariaDB, "mariadb Command-Line Client"): the text of a dump cannot run a program here.
        options = ("--default-character-set=utf8mb4", "--binary-mode", "--local-infile=0")
        client = [str(tools.client), f"--defaults-file={target}", *options, "--", schema]
        for words in dump.runs:
            programs.pipe(_argv(isolated, tools, source, words), client, timeout=timeout)
