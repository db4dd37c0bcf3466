"""Campaign: a server with encrypted binlogs is backed up, archived, restored, queried, undone and rewound.

It runs inside a guest (`python3 tests/lab campaign encrypted_binlogs`). The server gets a keyring and encrypts its
binlogs from then on. All features are tried with rows whose truth is known (the campaign `releases`). The truth of a
backup is the binlog that the server itself sends to a replica. The key is changed during the campaign. A written text
is searched in the binlog files and in the store, and must not be readable.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.campaigns.at_rest import BUCKET, encrypt_repository, refused
from tests.campaigns.releases import CONFIG, OPTIONS, ORDER, SERVER, SOCKET, Release, rows, sql, tried, zsnapdb
from tests.campaigns.support.faults import add_innochecksum
from tests.lab.inside.zygote import QUICK, Zygote
from tests.lab.inside.zygote import SOCKET as ZYGOTE

FOLDER, DATADIR = Path("/etc/keyring"), Path("/var/lib/mysql")


class EncryptedBinlogs(Release):
    """A server with encrypted binlogs, and everything that is tried on it."""

    def __init__(self, algorithm: str) -> None:
        super().__init__()
        self.algorithm = algorithm
        self.passphrase = FOLDER / "passphrase"
        self.canary = secrets.token_hex(24)
        self.copies = 0

    def give_keys(self) -> None:
        """Give the server a keyring that servers on copies may read, and turn on binlog encryption."""
        FOLDER.mkdir(mode=0o755)
        shutil.chown(FOLDER, "mysql", "mysql")
        keys = FOLDER / "keys"
        keys.touch(mode=0o600)
        shutil.chown(keys, "mysql", "mysql")
        lines, ours = self._with_component(keys) if self.flavour == "mysql" else self._with_plugin(keys)
        subprocess.run([SERVER, "stop"], check=True)
        OPTIONS.write_text("\n".join((OPTIONS.read_text(), *lines, "")))
        subprocess.run([SERVER, "start"], check=True)
        is_new = self.flavour == "mysql" and not str(sql("SELECT VERSION()")[0][0]).startswith("8.0.")
        sql("RESET BINARY LOGS AND GTIDS" if is_new else "RESET MASTER")
        hidden = zsnapdb("snapshot", "main")["backup_id"]
        said = refused("clone", "create", "main", "--from", hidden, "--name", "hidden")
        assert "its sandbox lacks" in said, said
        text = CONFIG.read_text()
        assert "\noptions = [" in text, text
        options = "".join(f'"{option}", ' for option in ours)
        CONFIG.write_text(text.replace("\noptions = [", f'\nsandbox_reads = ["{FOLDER}"]\noptions = [{options}', 1))

    def _with_component(self, keys: Path) -> tuple[list[str], list[str]]:
        """Return the options of the server, and those of servers on copies, for MySQL's keyring.

        The tree of another release is read-only, so it gets a writable layer.
        """
        if os.statvfs("/opt/mysql").f_flag & os.ST_RDONLY:
            for layer in ("/run/layer", "/run/layer/upper", "/run/layer/work"):
                Path(layer).mkdir()
            layers = "lowerdir=/opt/mysql/usr,upperdir=/run/layer/upper,workdir=/run/layer/work"
            subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, "/opt/mysql/usr"], check=True)
        Path("/opt/mysql/usr/sbin/mysqld.my").write_text('{"components": "file://component_keyring_file"}\n')
        component = Path("/opt/mysql/usr/lib/mysql/plugin/component_keyring_file.cnf")
        component.write_text(json.dumps({"path": str(keys), "read_only": False}))
        return ["binlog_encryption = ON"], []

    def _with_plugin(self, keys: Path) -> tuple[list[str], list[str]]:
        """As `_with_component` for MariaDB's plugin: its file has numbered keys and is protected by a passphrase."""
        text = "".join(f"{number};{secrets.token_hex(32)}\n" for number in (1, 2))
        self.passphrase.write_text(secrets.token_hex(16))
        shutil.chown(self.passphrase, "mysql", "mysql")
        self.passphrase.chmod(0o400)
        closing = ["openssl", "enc", "-aes-256-cbc", "-md", "sha1", "-pass", f"file:{self.passphrase}"]
        subprocess.run([*closing, "-out", str(keys)], input=text.encode(), check=True, capture_output=True)
        algorithm = f"file_key_management_encryption_algorithm={self.algorithm}"
        passphrase = f"file_key_management_filekey=FILE:{self.passphrase}"
        ours = ["plugin_load_add=file_key_management", f"file_key_management_filename={keys}", passphrase, algorithm]
        return [*ours, "encrypt_binlog = ON"], ours

    def refusal(self) -> None:
        """A repository without recipients gets no plain binlog."""
        assert "would be stored unencrypted" in refused("binlog", "archive", "main", "--once")
        assert not [file for file in BUCKET.rglob("*") if "/binlogs/" in str(file)]
        seen = subprocess.run([QUICK, "doctor", "main"], capture_output=True, text=True, timeout=300).stdout
        assert "they are not archived" in seen, seen
        encrypt_repository()

    def binlogs(self) -> Path:
        """Return the folder with the binlogs as the server sends them to a replica: decrypted."""
        self.copies += 1
        folder = Path(f"/mnt/sent-{self.copies}")
        folder.mkdir()
        index = DATADIR / "binlog.index"
        shutil.copy(index, folder)
        program = "/opt/mysql/bin/mysqlbinlog" if self.flavour == "mysql" else "/usr/bin/mariadb-binlog"
        tool = [program, "--read-from-remote-server", "-uroot", f"--socket={SOCKET}", "--raw"]
        first = Path(index.read_text().splitlines()[0]).name
        subprocess.run([*tool, f"--result-file={folder}/", "--to-last-log", first], check=True)
        return folder

    def hidden(self) -> None:
        """A written text is not readable in binlog files or in the store, but zsnapdb finds it."""
        sql(
            "CREATE DATABASE canary",
            "CREATE TABLE canary.t (id INT PRIMARY KEY, v VARCHAR(100))",
            f"INSERT INTO canary.t VALUES (1, '{self.canary}')",
            "FLUSH BINARY LOGS",
        )
        zsnapdb("binlog", "archive", "main", "--once")
        zsnapdb("backup", "main")
        assert self.canary.encode() in b"".join(file.read_bytes() for file in self.binlogs().glob("binlog.0*"))
        files = [*DATADIR.glob("binlog.0*"), *(file for file in BUCKET.rglob("*") if file.is_file())]
        assert not [file for file in files if self.canary.encode() in file.read_bytes()]
        found = zsnapdb("binlog", "find", "main", "--table", "canary.t", "--kind", "insert")
        assert len(found["transactions"]) == 1, found["transactions"]

    def rotation(self) -> None:
        """After a change of the master key everything continues. Older sets need the old keyring, as plans report."""
        then = json.loads((FOLDER / "keys").read_text())
        last = zsnapdb("backup", "main")["backup"]["backup_id"]
        before = zsnapdb("snapshot", "main")["backup_id"]
        sql("ALTER INSTANCE ROTATE BINLOG MASTER KEY")
        zsnapdb("backup", "main")
        zsnapdb("binlog", "archive", "main", "--once")
        zsnapdb("clone", "create", "main", "--from", "live", "--name", "rotated")
        zsnapdb("clone", "destroy", "rotated")
        for words in (("clone", "create", "main", "--from", before), ("restore", "main", "--to", last, "--plan")):
            said = refused(*words)
            assert "is encrypted with the key" in said, said
        sql("UPDATE tried.things SET price = price + 1")
        self.points["four"] = (self.position(), rows())
        sql("DELETE FROM tried.things")
        zsnapdb("binlog", "archive", "main", "--once")
        zsnapdb("rewind", "main", "--to", self.points["four"][0], "--yes", "--no-backup")
        assert rows() == self.points["four"][1]
        now = json.loads((FOLDER / "keys").read_text())
        names = {stored["data_id"] for stored in now["elements"]}
        gone = [stored for stored in then["elements"] if stored["data_id"] not in names]
        (FOLDER / "keys").write_text(json.dumps({**now, "elements": [*now["elements"], *gone]}))
        zsnapdb("clone", "create", "main", "--from", before, "--name", "older")
        zsnapdb("clone", "destroy", "older")

    def lost(self) -> None:
        """Without the keyring everything is refused before any change, with the name of the key."""
        keys, away = FOLDER / "keys", FOLDER / "away"
        keys.rename(away)
        try:
            for words in (("backup", "main", "--plan"), ("backup", "main"), ("snapshot", "main")):
                said = refused(*words)
                assert "is encrypted with the key" in said, said
        finally:
            away.rename(keys)
        zsnapdb("backup", "main")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithm", choices=("aes_cbc", "aes_ctr"), default="aes_cbc", help="MariaDB's")
    server = EncryptedBinlogs(parser.parse_args().algorithm)
    sql("GRANT TRIGGER ON *.* TO zsnapdb@localhost")
    add_innochecksum()
    zygote = Zygote(ZYGOTE)
    last = ("rotation",) if server.flavour == "mysql" else ()
    names = ("give_keys", "refusal", *ORDER[:-1], "random_points", "hidden", "lost", "rewind", *last)
    cells = [tried(name, getattr(server, name)) for name in names]
    zygote.close()
    Path("/out/campaign.json").write_text(json.dumps([asdict(cell) for cell in cells], indent=1) + "\n")
    wrong = [cell.name for cell in cells if cell.result != "exact"]
    print(f"{len(cells) - len(wrong)} of {len(cells)} exact; not: {', '.join(wrong) or 'none'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
