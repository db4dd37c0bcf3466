"""Masks a copy of a server before anyone can connect to it.

It runs the site's SQL files and scripts, then it removes what is left of the old rows in the files.
"""

from __future__ import annotations

import contextlib
import os
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
from zsnapdb.jobs.fresh import fresh_password, fresh_server_id
from zsnapdb.jobs.server_copy.client_file import client_text
from zsnapdb.jobs.server_copy.prepare import Copy, check_inside, check_recovered
from zsnapdb.model import Position
from zsnapdb.mysql import accounts, applier, scrub, server, variables
from zsnapdb.mysql.session import Address, Session
from zsnapdb.planning.clone.masking import Table, remains, renewing_options, to_rebuild
from zsnapdb.planning.facts import ServerFacts
from zsnapdb.planning.family import family
from zsnapdb.planning.server_copy.identity import Access, binlog_paths

_ACCOUNT = "zsnapdb_mask"
_CLIENT = "mask.cnf"


@dataclass(frozen=True)
class MaskingStep:
    """A masking file that was run. `rows` are the changed rows; `statements` and `rows` are None for a script."""

    name: str
    statements: int | None
    rows: int | None
    seconds: float


@dataclass(frozen=True)
class MaskingReport:
    """What masking did to a copy: its steps, the rebuilt tables, and where bytes of the old rows may remain.

    Times are in seconds.
    """

    steps: tuple[MaskingStep, ...]
    rebuilt: tuple[Table, ...]
    remains: tuple[str, ...]
    seconds: float


def check(masking: MaskingSettings) -> None:
    """Raise ConfigError or HookError unless every masking file exists and can be read or executed."""
    for words in masking.run:
        if not _is_sql(words):
            hooks.check(_hook(words, masking))
        elif len(words) > 1 or not os.access(words[0], os.R_OK) or not Path(words[0]).is_absolute():
            raise ConfigError(
                f"masking.run {' '.join(words)} is not a readable SQL file",
                hint="give the absolute path of the SQL file, without arguments",
            )


def _is_sql(words: tuple[str, ...]) -> bool:
    return words[0].endswith(".sql")


def _hook(words: tuple[str, ...], masking: MaskingSettings) -> Hook:
    return Hook(When.MASK, words, masking.timeout)


def mask(
    copy: Copy, masking: MaskingSettings, position: Position, unlogged: GtidSet | None, *, instance: str, clone: str
) -> MaskingReport:
    """Mask a mounted copy that was made separate from its source and whose server does not run.

    Its server must recover to `position`. During masking the server listens only on a socket in its private folder.
    Afterwards the server is shut down cleanly and its GTIDs are those of `position`; its files contain no binlog, relay
    log, redo or undo of before. HookError if a step fails. After any error the copy must not be handed out.
    """
    check(masking)
    began = time.monotonic()
    with _running(copy, masking.timeout) as session:
        applier.forget(session)
        facts, _ = check_recovered(session, position, unlogged)
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
        since = variables.clock(session)
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
    remaining = remains(
        facts.flavour,
        facts.release,
        facts.variables,
        facts.engines,
        undo_renewed=undo_renewed,
        logs_known="slow_query_log_file" in copy.variables,
    )
    return MaskingReport(steps, tuple(rebuilt), remaining, time.monotonic() - began)


@contextlib.contextmanager
def _running(copy: Copy, timeout: float) -> Iterator[Session]:
    """Run the copy's server without network during the block; then purge and shut it down cleanly.

    After an error the server is killed. The account of the session exists only while the server runs; its password is
    in a file of the private folder.
    """
    password = fresh_password()
    init_file, client = copy.folder / "init.sql", copy.folder / _CLIENT
    socket = copy.process().socket
    server.write_private(init_file, accounts.owner_sql(_ACCOUNT, ("localhost",), password), copy.settings.user)
    _write_client_file(copy, password)
    identity = copy.identity(server_id=fresh_server_id(), port=None, access=Access.ACCOUNTS, init_file=str(init_file))
    try:
        copy.start(identity, _ACCOUNT, password).close()
        init_file.unlink()
        with Session.open(Address(_ACCOUNT, socket), password, read_timeout=timeout, scripts=True) as session:
            variables.stop_logging(session)
            yield session
            variables.shut_down_slowly(session)
            accounts.drop(session, _ACCOUNT)
        copy.process().stop(timeout=timeout)
    except BaseException:
        copy.process().kill()
        raise
    finally:
        init_file.unlink(missing_ok=True)
        client.unlink(missing_ok=True)


def _write_client_file(copy: Copy, password: SecretStr) -> None:
    file = copy.folder / _CLIENT
    login = client_text(Address(_ACCOUNT, copy.process().socket), password)
    # The changes of a script must not get GTIDs: the GTIDs of the copy stay those of its source.
    login += "".join(f"[{program}]\ninit-command={variables.STOP_LOGGING}\n" for program in ("mysql", "mariadb"))
    server.write_private(file, login, copy.settings.user)


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
            f"masking with {name}: {error}",
            hint="correct the file, then make the clone again; this clone was not handed out",
        ) from error
    return MaskingStep(name, statements, rows, time.monotonic() - began)


def _scrub(session: Session, facts: ServerFacts, masking: MaskingSettings, since: float) -> tuple[list[Table], bool]:
    """Remove what the running server stores of the old rows.

    Return the rebuilt tables, and whether the undo tablespaces were made anew.
    """
    chosen = to_rebuild(scrub.tables(session, facts.flavour, since), masking.rebuild)
    scrub.rebuild(session, chosen)
    scrub.forget_values(session, facts.flavour)
    scrub.purge(session)
    return chosen, family(facts.flavour).redo_is_replaceable and scrub.renew_undo(session)


def _remove_logs(copy: Copy, facts: ServerFacts) -> None:
    """Remove the logs of the copy, whose server was shut down slowly.

    `facts` are those of the copy's server, so every path lies in the copy.
    """
    names = facts.variables
    logs = [binlog_paths(names, kind) for kind in ("log_bin", "relay_log")]
    binlog, relay = (None if paths is None else Path(paths[0]) for paths in logs)
    datadir = Path(names["datadir"])
    is_replaceable = family(facts.flavour).redo_is_replaceable
    redo = datadir / names.get("innodb_log_group_home_dir", "") if is_replaceable else None
    doublewrite = datadir / names.get("innodb_doublewrite_dir", "") if is_replaceable else None
    scrub.remove_logs(binlog, relay, redo, doublewrite, _text_logs(copy, names))


def _text_logs(copy: Copy, running: Mapping[str, str]) -> list[Path]:
    """Return the log files in the copy that may contain statements, of its own server and of the source's server."""
    logs = [Path(path) for path in scrub.text_logs(running)]
    for path in scrub.text_logs(copy.variables):
        # A log outside the volumes was not copied.
        with contextlib.suppress(PreflightError):
            logs.append(Path(copy.paths.translate(path)))
    return [path for path in logs if path.is_relative_to(copy.root) and path != copy.process().error_log]
