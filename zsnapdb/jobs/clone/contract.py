"""The clone's server is started under an identity of its own, and asked whether it is separate from its source."""

from __future__ import annotations

import secrets

from pydantic import SecretStr

from zsnapdb.errors import ConsistencyError
from zsnapdb.jobs.copies import Copy, check_inside, check_recovered
from zsnapdb.model import Position
from zsnapdb.mysql import server
from zsnapdb.planning.facts import ServerFacts
from zsnapdb.planning.identity import Access

ACCOUNT = "zsnapdb_clone"


def start(copy: Copy, facts: ServerFacts, position: Position, port: int) -> SecretStr:
    """Start the clone's server under a new identity, check that it is one, and return the password of its account."""
    copy.make_private()
    server.remove_identity(copy.datadir)
    password = SecretStr(secrets.token_urlsafe(18) + "-aA9")
    init_file = copy.folder / "init.sql"
    server.write_private(init_file, _account_sql(password), copy.settings.user)
    server_id = secrets.randbelow(2**31) + 2**31 - 1
    identity = copy.identity(server_id=server_id, port=port, access=Access.ACCOUNTS, init_file=str(init_file))
    with copy.start(identity, ACCOUNT, password) as session:
        found, _ = check_recovered(session, position, facts.gtid_purged)
        _check_identity(found, facts, copy, server_id, port)
    init_file.unlink()
    copy.write_option_file(copy.identity(server_id=server_id, port=port, access=Access.ACCOUNTS))
    credentials = f"[client]\nuser={ACCOUNT}\npassword={password.get_secret_value()}\nhost=127.0.0.1\nport={port}\n"
    server.write_private(copy.folder / "client.cnf", credentials, copy.settings.user)
    return password


def _account_sql(password: SecretStr) -> str:
    """Return the statements that make the clone's account, outside its binlog, so that its GTIDs stay the source's."""
    secret = password.get_secret_value()
    lines = ["SET SESSION sql_log_bin = 0;"]
    for host in ("localhost", "127.0.0.1"):
        lines += [
            f"DROP USER IF EXISTS '{ACCOUNT}'@'{host}';",
            f"CREATE USER '{ACCOUNT}'@'{host}' IDENTIFIED BY '{secret}';",
            f"GRANT ALL PRIVILEGES ON *.* TO '{ACCOUNT}'@'{host}' WITH GRANT OPTION;",
        ]
    return "\n".join(lines) + "\n"


def _check_identity(found: ServerFacts, source: ServerFacts, copy: Copy, server_id: int, port: int) -> None:
    """Raise ConsistencyError unless the started server shares nothing with its source and nothing in it acts by itself."""
    wrong = []
    if found.server_uuid is not None and found.server_uuid == source.server_uuid:
        wrong.append(f"server_uuid is the source's, {found.server_uuid}")
    if found.server_id != server_id or found.server_id == source.server_id:
        wrong.append(f"server_id is {found.server_id}, not {server_id}")
    if int(found.variables["port"]) != port:
        wrong.append(f"port is {found.variables['port']}, not {port}")
    if found.variables["event_scheduler"].upper() not in ("OFF", "DISABLED"):
        wrong.append(f"event_scheduler is {found.variables['event_scheduler']}")
    if any(channel.receiving or channel.applying for channel in found.channels):
        wrong.append("replication is running")
    if wrong:
        raise ConsistencyError("the clone's server is not separate from its source: " + "; ".join(wrong), hint="it was stopped and removed; report this")
    check_inside(found, copy.root)
