"""Masks a copy of a server before anyone can reach it: the site's SQL files and scripts, then the removal of what the old rows left behind."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import SecretStr

from zsnapdb import hooks
from zsnapdb.config import MaskingSettings
from zsnapdb.errors import ConfigError, HookError, PreflightError, ServerError
from zsnapdb.gtid import GtidSet
from zsnapdb.hooks import Hook, When
from zsnapdb.jobs.clone.contract import forget_replication
from zsnapdb.jobs.server_copy.prepare import Copy, check_inside, check_recovered
from zsnapdb.model import Flavour, Position
from zsnapdb.mysql import scrub, server
from zsnapdb.mysql.session import Address, Session
from zsnapdb.planning.clone.masking import Table, remains, renewing_options, to_rebuild
from zsnapdb.planning.facts import ServerFacts
from zsnapdb.planning.server_copy.identity import Access, binlog_paths

_ACCOUNT = "zsnapdb_mask"
_CLIENT = "mask.cnf"


@dataclass(frozen=True)
class MaskingStep:
    """One file of the site's masking, done. `statements` and `rows` (changed) are None for a script."""

    name: str
    statements: int | None
    rows: int | None
    seconds: float


@dataclass(frozen=True)
class MaskingReport:
    """What masking a copy did: its steps, the tables written anew, and where bytes of the old rows may still lie.

    Times in seconds.
    """

    steps: tuple[MaskingStep, ...]
    rebuilt: tuple[Table, ...]
    remains: tuple[str, ...]
    seconds: float


def check(masking: MaskingSettings) -> None:
    """Raise ConfigError or HookError unless every file that masks is there and may be read or executed."""
    for words in masking.run:
        if not _is_sql(words):
            hooks.check(_hook(words, masking))
        elif len(words) > 1 or not os.access(words[0], os.R_OK) or not Path(words[0]).is_absolute():
            raise ConfigError(
                f"masking.run {' '.join(words)} is not a readable SQL file", hint="name it with its whole path, alone"
            )


def _is_sql(words: tuple[str, ...]) -> bool:
    return words[0].endswith(".sql")


def _hook(words: tuple[str, ...], masking: MaskingSettings) -> Hook:
    return Hook(When.MASK, words, masking.timeout)


def mask(
    copy: Copy, masking: MaskingSettings, wanted: Position, unlogged: GtidSet | None, *, instance: str, clone: str
) -> MaskingReport:
    """Mask a mounted copy that was made separate from its source and whose server does not run.

    `wanted` is where it must recover to.

    Meanwhile its server listens on a socket in its private folder alone. Afterwards it was shut down cleanly and stands
    at `wanted` by its GTIDs; its files have no binlog, relay log, redo or undo from before. HookError if a step fails;
    after any error the copy is not to be handed out.
    """
    check(masking)
    began = time.monotonic()
    with _running(copy, masking.timeout) as session:
        forget_replication(session)
        facts, _ = check_recovered(session, wanted, unlogged)
        check_inside(facts, copy.root)
        environment = {
            "ZSNAPDB_HOOK": When.MASK.value,
            "ZSNAPDB_INSTANCE": instance,
            "ZSNAPDB_CLONE": clone,
            "ZSNAPDB_FLAVOUR": facts.flavour.value,
        }
        environment |= {
            "ZSNAPDB_SOCKET": str(copy.process().socket),
            "ZSNAPDB_DEFAULTS_FILE": str(copy.folder / _CLIENT),
        }
        scrub.prepare(session)
        since = float(session.value("SELECT UNIX_TIMESTAMP()"))
        steps = tuple(_step(session, words, masking, environment) for words in masking.run)
        rebuilt, undo_renewed = _scrub(session, facts, masking, since)
    _remove_logs(copy, facts)
    options = renewing_options(facts.flavour, facts.release, facts.variables)
    if options:
        renewing = replace(
            copy, settings=copy.settings.model_copy(update={"options": (*copy.settings.options, *options)})
        )
        with _running(renewing, masking.timeout):
            pass
        _remove_logs(copy, facts)
    known = "slow_query_log_file" in copy.variables
    left = remains(
        facts.flavour, facts.release, facts.variables, facts.engines, undo_renewed=undo_renewed, logs_known=known
    )
    return MaskingReport(steps, tuple(rebuilt), left, time.monotonic() - began)


@contextlib.contextmanager
def _running(copy: Copy, timeout: float) -> Iterator[Session]:
    """Run the copy's server, without network, for the block; then shut it down cleanly, all purged.

    On an error it is killed.

    The account of the block exists only as long as the server runs; its password is in a file of the private folder.
    """
    password = SecretStr(secrets.token_urlsafe(18) + "-aA9")
    init_file, client = copy.folder / "init.sql", copy.folder / _CLIENT
    socket = copy.process().socket
    server.write_private(init_file, _account_sql(password), copy.settings.user)
    server.write_private(client, _client_file(password, socket), copy.settings.user)
    identity = copy.identity(
        server_id=2**31 + secrets.randbelow(2**31 - 1), port=None, access=Access.ACCOUNTS, init_file=str(init_file)
    )
    try:
        copy.start(identity, _ACCOUNT, password).close()
        init_file.unlink()
        with Session.open(Address(_ACCOUNT, socket), password, read_timeout=timeout, scripts=True) as session:
            session.query("SET SESSION sql_log_bin = 0")
            yield session
            # A slow shutdown: nothing is left to be done at the next start (refman 8.4 and MariaDB manual,
            # innodb_fast_shutdown).
            session.query("SET GLOBAL innodb_fast_shutdown = 0")
            session.query(f"DROP USER {_ACCOUNT}@localhost")
        copy.process().stop(timeout=timeout)
    except BaseException:
        copy.process().kill()
        raise
    finally:
        init_file.unlink(missing_ok=True)
        client.unlink(missing_ok=True)


def _account_sql(password: SecretStr) -> str:
    secret = password.get_secret_value()
    return (
        "SET SESSION sql_log_bin = 0;\n"
        f"DROP USER IF EXISTS {_ACCOUNT}@localhost;\n"
        f"CREATE USER {_ACCOUNT}@localhost IDENTIFIED BY '{secret}';\n"
        f"GRANT ALL PRIVILEGES ON *.* TO {_ACCOUNT}@localhost WITH GRANT OPTION;\n"
    )


def _client_file(password: SecretStr, socket: Path) -> str:
    login = f"[client]\nuser={_ACCOUNT}\npassword={password.get_secret_value()}\nsocket={socket}\n"
    # What a script changes must not be numbered: the copy's GTIDs stay those of its source.
    return login + "".join(f"[{program}]\ninit-command=SET SESSION sql_log_bin=0\n" for program in ("mysql", "mariadb"))


def _step(
    session: Session, words: tuple[str, ...], masking: MaskingSettings, environment: Mapping[str, str]
) -> MaskingStep:
    began, name = time.monotonic(), " ".join(words)
    if not _is_sql(words):
        hooks.run(_hook(words, masking), environment)
        return MaskingStep(name, None, None, time.monotonic() - began)
    try:
        statements, rows = session.script(Path(words[0]).read_text())
    except (OSError, UnicodeDecodeError, ServerError) as error:
        raise HookError(
            f"masking with {name}: {error}", hint="correct the file; the clone was not handed out"
        ) from error
    return MaskingStep(name, statements, rows, time.monotonic() - began)


def _scrub(session: Session, facts: ServerFacts, masking: MaskingSettings, since: float) -> tuple[list[Table], bool]:
    """Remove what the running server keeps of the old rows.

    Return the tables written anew and whether undo was made anew.
    """
    chosen = to_rebuild(scrub.tables(session, facts.flavour, since), masking.rebuild)
    scrub.rebuild(session, chosen)
    scrub.forget_values(session, facts.flavour)
    scrub.purge(session)
    return chosen, facts.flavour is Flavour.MYSQL and scrub.renew_undo(session)


def _remove_logs(copy: Copy, facts: ServerFacts) -> None:
    """Remove the logs of the copy, whose server was shut down slowly.

    `facts` are the running copy's, so every path is its own.
    """
    names = facts.variables
    logs = [binlog_paths(names, kind) for kind in ("log_bin", "relay_log")]
    binlog, relay = (None if found is None else Path(found[0]) for found in logs)
    datadir = Path(names["datadir"])
    redo = datadir / names.get("innodb_log_group_home_dir", "") if facts.flavour is Flavour.MYSQL else None
    doublewrite = datadir / names.get("innodb_doublewrite_dir", "") if facts.flavour is Flavour.MYSQL else None
    scrub.remove_logs(binlog, relay, redo, doublewrite, _text_logs(copy, names))


def _text_logs(copy: Copy, running: Mapping[str, str]) -> list[Path]:
    """Return the copy's log files with statements in them: where its own server writes, and where the source's did, if that is on its volumes."""
    found = [Path(path) for path in scrub.text_logs(running)]
    for path in scrub.text_logs(copy.variables):
        # A log elsewhere was not copied.
        with contextlib.suppress(PreflightError):
            found.append(Path(copy.paths.translate(path)))
    return [path for path in found if path.is_relative_to(copy.root) and path != copy.process().error_log]
