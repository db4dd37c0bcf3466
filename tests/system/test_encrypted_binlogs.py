"""Binlogs that a server encrypts are read as the server itself reads them."""

from __future__ import annotations

import io
import json
import secrets
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.lab.inside import ledger
from tests.unit.support.binlog_file import read_tail
from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import PreflightError
from zsnapdb.mysql.binlog.binlog_files import open_binlog
from zsnapdb.mysql.binlog.binlog_keys import BinlogKeys
from zsnapdb.mysql.binlog.events import read_plain

from .binlog_flavours import FLAVOUR

# The lists of MySQL's components lie beside its program.
MANIFEST = Path("/opt/mysql/usr/sbin/mysqld.my")
COMPONENT = Path("/opt/mysql/usr/lib/mysql/plugin/component_keyring_file.cnf")
ROWS = ("'a'", "REPEAT('abcdefg', 10000)", "REPEAT('z', 70001)", "''")


@dataclass(frozen=True)
class EncryptingServer:
    """A server of its own that encrypts its binlogs, beside that of the lab: its folder, and the file of its keys."""

    folder: Path

    @property
    def keys(self) -> Path:
        return self.folder / "keys"

    @property
    def passphrase(self) -> Path:
        """The file that opens MariaDB's file of keys."""
        return self.folder / "passphrase"

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        with ledger.connect(f"{self.folder}/socket", "root", "", None) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    @property
    def end(self) -> tuple[Path, int]:
        """The newest binlog, and where the server says that it ends."""
        status = "SHOW BINARY LOG STATUS" if FLAVOUR is Flavour.MYSQL else "SHOW MASTER STATUS"
        name, offset, *_ = self.sql(status)[0]
        return self.folder / "data" / name, int(offset)

    def sent(self, binlog: str) -> bytes:
        """Return the binlog as the server sends it to a replica."""
        tool = "/opt/mysql/bin/mysqlbinlog" if FLAVOUR is Flavour.MYSQL else "/usr/bin/mariadb-binlog"
        words = [tool, "--read-from-remote-server", "-uroot", f"--socket={self.folder}/socket", "--raw"]
        subprocess.run([*words, f"--result-file={self.folder}/sent-", binlog], check=True)
        return (self.folder / f"sent-{binlog}").read_bytes()


def _words(server: EncryptingServer) -> list[str]:
    folder = server.folder
    if FLAVOUR is Flavour.MYSQL:
        server.keys.touch()
        MANIFEST.write_text('{"components": "file://component_keyring_file"}')
        COMPONENT.write_text(json.dumps({"path": str(server.keys), "read_only": False}))
        program = ["/opt/mysql/bin/mysqld", "--no-defaults", "--user=root", f"--datadir={folder}/data"]
        small = ["--innodb-buffer-pool-size=5M", "--performance-schema=OFF", "--innodb-redo-log-capacity=8M"]
        subprocess.run([*program, *small, "--initialize-insecure"], check=True, capture_output=True)
        return [*program, *small, "--mysqlx=OFF", "--secure-file-priv=", "--binlog-encryption=ON"]
    server.passphrase.write_text(secrets.token_hex(16) + "\n")
    closing = ["openssl", "enc", "-aes-256-cbc", "-md", "sha1", "-pass", f"file:{server.passphrase}"]
    text = f"1;{secrets.token_hex(32)}\n".encode()
    subprocess.run([*closing, "-out", str(server.keys)], input=text, check=True, capture_output=True)
    (folder / "data").mkdir()
    engine = ["--skip-innodb", "--default-storage-engine=Aria", "--skip-grant-tables"]
    plugin = [
        "--plugin-load-add=file_key_management",
        f"--file-key-management-filename={server.keys}",
        f"--file-key-management-filekey=FILE:{server.passphrase}",
    ]
    return [
        "mariadbd",
        "--no-defaults",
        "--user=root",
        f"--datadir={folder}/data",
        *engine,
        *plugin,
        "--encrypt-binlog",
    ]


@pytest.fixture(scope="module")
def encrypting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EncryptingServer]:
    server = EncryptingServer(tmp_path_factory.mktemp("e"))
    own = [f"--{option}={server.folder / option}" for option in ("socket", "pid-file")]
    # A name without a dot gets an ending of the server's.
    own.append(f"--log-error={server.folder}/log.err")
    try:
        words = [*_words(server), *own, "--server-id=9", "--log-bin=enc", "--binlog-format=ROW", "--skip-networking"]
        with subprocess.Popen(words) as process:
            try:
                deadline, log = time.monotonic() + 300, server.folder / "log.err"
                while not (log.exists() and "ready for connections" in log.read_text()):
                    assert process.poll() is None, log.read_text()
                    assert time.monotonic() < deadline
                    time.sleep(0.1)
                server.sql("CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY, b LONGTEXT)")
                yield server
            finally:
                process.kill()
    finally:
        for file in (MANIFEST, COMPONENT):
            file.unlink(missing_ok=True)


def test_what_is_read_of_an_encrypted_binlog_is_what_the_server_sends_and_ends_where_it_says(
    encrypting: EncryptingServer,
) -> None:
    keys = BinlogKeys((encrypting.keys, encrypting.passphrase))
    for number, value in enumerate(ROWS):
        encrypting.sql(f"INSERT INTO d.t VALUES ({number}, {value})")
        binlog, offset = encrypting.end
        tail = read_tail(binlog, keys=keys)
        assert (tail.offset, tail.unfinished) == (offset, 0)
        with pytest.raises(PreflightError, match="is encrypted with the key"):
            read_tail(binlog)
    encrypting.sql("FLUSH BINARY LOGS")
    with open_binlog(binlog, keys) as file:
        seen = bytes(read_plain(file, 0, file.seek(0, 2)))
    sent = encrypting.sent(binlog.name)
    # Whether the server still writes to the file is a flag, which is not archived.
    assert seen == bytes(read_plain(io.BytesIO(sent), 0, len(sent)))
    assert b"abcdefgabcdefg" in seen
    assert b"abcdefgabcdefg" not in binlog.read_bytes()


@pytest.mark.skipif(FLAVOUR is Flavour.MARIADB, reason="file_key_management rotates no keys")
def test_after_a_rotation_of_the_key_the_binlogs_are_read_and_those_of_a_snapshot_with_the_keys_of_before(
    encrypting: EncryptingServer,
) -> None:
    keys = BinlogKeys((encrypting.keys, encrypting.passphrase)).remembered()
    binlog, _ = encrypting.end
    (before := encrypting.folder / "enc.000099").write_bytes(binlog.read_bytes())
    encrypting.sql("ALTER INSTANCE ROTATE BINLOG MASTER KEY")
    with open_binlog(binlog, keys) as file, open_binlog(before, keys) as old:
        assert read_plain(file, 0, 100) == read_plain(old, 0, 100)
    with pytest.raises(PreflightError, match="is encrypted with the key"):
        open_binlog(before, BinlogKeys((encrypting.keys, encrypting.passphrase)))
