"""The login of a clone on a real server: shown again, renewed, and reached at an address of the network by TLS."""

from __future__ import annotations

import os
import pwd
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pymysql
import pytest

from tests.unit.support import certificates

from .in_guest import Lab, ask, run

pytestmark = pytest.mark.usefixtures("first")

MOUNTS = Path("/var/lib/zsnapdb/clones")
ADDRESS = "192.0.2.10"
REFUSED = 1045


def session(login: dict[str, Any], password: str = "", **options: Any) -> pymysql.Connection:
    secret = password or login["password"]
    address = {"host": login["host"], "port": login["port"], "user": login["user"]}
    return pymysql.connect(password=secret, autocommit=True, **{**address, **options})


def login(lab: Lab, *words: str) -> dict[str, Any]:
    shown: dict[str, Any] = lab.zsnapdb("clone", "login", *words, "--json").json
    return shown


def refuses(login: dict[str, Any], password: str) -> None:
    with pytest.raises(pymysql.err.OperationalError) as refused:
        session(login, password)
    assert refused.value.args[0] == REFUSED


def holders_of(secret: str) -> set[Path]:
    """Return each file with the secret where zsnapdb and the servers of clones write."""
    found = run("grep", "-rlF", "-e", secret, str(MOUNTS), "/run", "/var/lib/zsnapdb", "/var/log")
    return {Path(line) for line in found.stdout.splitlines()}


@contextmanager
def clone_of(lab: Lab, name: str, *words: str, **options: Any) -> Iterator[dict[str, Any]]:
    made: dict[str, Any] = lab.zsnapdb(
        "clone", "create", "main", "--name", name, "--owner", "ada", "--ttl", "1h", *words, "--json", **options
    ).json
    try:
        yield made
    finally:
        assert lab.zsnapdb("clone", "destroy", name).code == 0


def test_new_password_ends_sessions_and_stays_through_changes(lab: Lab) -> None:
    with clone_of(lab, "renewed") as made:
        shown = login(lab, "renewed")
        assert (shown["password"], shown["port"]) == (made["password"], made["clone"]["port"])
        assert shown["local_only"]
        with session(shown) as before, session(shown) as locking:
            ask(locking, "LOCK TABLES ledger.accounts WRITE")
            first = login(lab, "renewed", "--new")
            for ended in (before, locking):
                with pytest.raises(pymysql.err.MySQLError):
                    ask(ended, "SELECT 1")
        refuses(first, shown["password"])
        with session(first) as here:
            ask(here, "CREATE TABLE ledger.mine (id INT)")
            assert ask(here, "SELECT COUNT(*) > 0 FROM ledger.accounts") == [(1,)]
        assert login(lab, "renewed")["password"] == first["password"]
        assert {file.name for file in holders_of(first["password"])} == {"client.cnf"}
        assert holders_of(shown["password"]) == set()

        assert lab.zsnapdb("clone", "branch", "create", "renewed", "later").code == 0
        assert lab.zsnapdb("clone", "branch", "switch", "renewed", "later").code == 0
        second = login(lab, "renewed", "--new")
        assert lab.zsnapdb("clone", "reset", "renewed").code == 0
        assert login(lab, "renewed")["password"] == second["password"]
        session(second).close()
        refuses(second, first["password"])

        assert lab.zsnapdb("clone", "stop", "renewed").code == 0
        for words in ((), ("--new",)):
            refused = lab.zsnapdb("clone", "login", "renewed", *words)
            assert (refused.code, "does not run" in refused.stderr) == (4, True), refused.stderr
        assert lab.zsnapdb("clone", "start", "renewed").code == 0
        session(second).close()


@contextmanager
def address_of_network() -> Iterator[None]:
    """Give this host an address that is not its loopback address."""
    assert run("ip", "address", "add", f"{ADDRESS}/32", "dev", "lo").code == 0
    try:
        yield
    finally:
        run("ip", "address", "del", f"{ADDRESS}/32", "dev", "lo")


def test_clone_on_the_network_is_reached_by_tls_alone(lab: Lab, tmp_path: Path) -> None:
    """The recipe of docs/clones.md."""
    folder = Path("/etc/zsnapdb-clones")
    files = certificates.make(folder, ADDRESS)
    server = pwd.getpwnam("mysql")
    for file in (files.cert, files.key):
        os.chown(file, server.pw_uid, server.pw_gid)
    files.key.chmod(0o400)
    options = f'"ssl_cert={files.cert}", "ssl_key={files.key}", "require_secure_transport=ON"'
    config = lab.changed(("options = [", f"options = [{options}, "))
    try:
        with address_of_network(), clone_of(lab, "remote", "--bind", ADDRESS, config=config) as made:
            clone = made["clone"]
            assert (clone["address"], clone["local_only"]) == (f"{ADDRESS}:{clone['port']}", False)
            address = {"user": made["user"], "port": clone["port"], "host": ADDRESS}
            with session(address, made["password"], ssl_ca=str(files.ca), ssl_verify_identity=True) as here:
                assert ask(here, "SHOW STATUS LIKE 'Ssl_cipher'")[0][1]
            with pytest.raises(pymysql.err.OperationalError):
                session(address, made["password"], ssl_disabled=True)
            other = certificates.make(tmp_path / "other", ADDRESS)
            with pytest.raises(pymysql.err.OperationalError, match="certificate"):
                session(address, made["password"], ssl_ca=str(other.ca), ssl_verify_identity=True)
    finally:
        shutil.rmtree(folder)
