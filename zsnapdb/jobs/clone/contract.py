"""Starts a clone's server under an identity of its own and asks it whether it is separate from its source.

One that is not is stopped.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass

from pydantic import SecretStr

from zsnapdb.errors import ConsistencyError
from zsnapdb.jobs.clone import credentials, locks
from zsnapdb.jobs.fresh import fresh_password
from zsnapdb.jobs.server_copy.prepare import Copy, check_inside, check_recovered
from zsnapdb.jobs.undo import undone_on_error
from zsnapdb.model import Position
from zsnapdb.mysql import accounts, applier, server
from zsnapdb.mysql.probe import probe
from zsnapdb.mysql.session import Session
from zsnapdb.planning.clone.contract import ACCOUNT, Promise, broken
from zsnapdb.planning.facts import ServerFacts
from zsnapdb.planning.server_copy.identity import Access, ServerIdentity
from zsnapdb.planning.server_copy.origin import Origin


@dataclass(frozen=True)
class Tenant:
    """The clone's server as it is told to be: who it is, where it listens, whether the source's accounts are locked in it."""

    copy: Copy
    origin: Origin
    server_id: int
    port: int
    bind_address: str
    locks_accounts: bool
    follows: int | None = None

    def identity(self, init_file: str | None = None) -> ServerIdentity:
        """Return its identity for the option file."""
        return self.copy.identity(
            server_id=self.server_id,
            port=self.port,
            access=Access.ACCOUNTS,
            init_file=init_file,
            bind_address=self.bind_address,
        )


def make_separate(tenant: Tenant) -> Position:
    """Take from the files, before anything is started on them, what makes them another server's.

    Return where they stand.

    What an earlier server on them left of its own (the parent of a committed clone) goes too.
    """
    copy = tenant.copy
    shutil.rmtree(copy.folder, ignore_errors=True)
    copy.make_private()
    server.remove_identity(copy.datadir)
    return copy.recorded_position(has_gtids=tenant.origin.has_gtids)


def first_start(tenant: Tenant, position: Position, password: SecretStr) -> None:
    """Start the server, which must come up at exactly the position, and check it. On any error it is stopped."""
    with locks.turn(), undone_on_error(tenant.copy.process().kill), _started_with_account(tenant, password) as session:
        applier.forget(session)
        found, _ = check_recovered(session, position, tenant.origin.unlogged_gtids)
        check(session, found, tenant)
    _settle(tenant, password)


def start_again(tenant: Tenant, password: SecretStr | None) -> SecretStr:
    """Start the server of a clone that was started before, check it, and return its password: the one given, else a new one."""
    process = tenant.copy.process()
    tenant.copy.make_private()
    with locks.turn(), undone_on_error(process.kill):
        if password is not None:
            with tenant.copy.start(tenant.identity(), ACCOUNT, password) as session:
                check(session, probe(session), tenant)
            return password
        fresh = fresh_password()
        with _started_with_account(tenant, fresh) as session:
            check(session, probe(session), tenant)
    _settle(tenant, fresh)
    return fresh


def _started_with_account(tenant: Tenant, password: SecretStr) -> Session:
    """Start the server with an init file, which it runs before it lets anyone in."""
    init_file = tenant.copy.folder / "init.sql"
    sql = credentials.account_sql(tenant.origin, password, tenant.bind_address, lock=tenant.locks_accounts)
    server.write_private(init_file, sql, tenant.copy.settings.user)
    return tenant.copy.start(tenant.identity(str(init_file)), ACCOUNT, password)


def _settle(tenant: Tenant, password: SecretStr) -> None:
    """Leave the files as later starts need them: no statements to run, the credentials for its owner."""
    copy = tenant.copy
    (copy.folder / "init.sql").unlink(missing_ok=True)
    copy.write_option_file(tenant.identity())
    credentials.write(copy.folder / "client.cnf", password, tenant.bind_address, tenant.port, copy.settings.user)


def check(session: Session, found: ServerFacts, tenant: Tenant) -> None:
    """Raise ConsistencyError unless the started server shares nothing with its source and nothing in it acts by itself."""
    awake: tuple[str, ...] = ()
    if tenant.locks_accounts:
        awake = accounts.awake(session, tenant.origin.flavour)
    promise = Promise(tenant.server_id, tenant.port, tenant.bind_address, tenant.identity().socket, tenant.follows)
    wrong = broken(found, tenant.origin, promise, awake)
    if wrong:
        raise ConsistencyError(
            "the clone's server is not separate from its source: " + "; ".join(wrong),
            hint="it was stopped; report this",
        )
    check_inside(found, tenant.copy.root)
