"""Campaign: a server that encrypts its binlogs is backed up, archived, restored, asked, undone and rewound.

Runs inside a guest (`python3 tests/lab campaign encrypted_binlogs`). The server gets a keyring and encrypts its binlogs
from then on. Everything that zsnapdb does is tried with rows whose truth is known (the campaign `releases`); the truth
of a backup is what the server itself sends to a replica. The key is changed in the middle. A text that was written is
looked for in the files of the binlogs and in the store: it is nowhere in the clear.
"""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.campaigns.at_rest import BUCKET, encrypt_repository, refused
from tests.campaigns.releases import CONFIG, OPTIONS, ORDER, SERVER, SOCKET, Release, sql, tried, zsnapdb
from tests.campaigns.support.faults import add_innochecksum
from tests.lab.inside.zygote import SOCKET as ZYGOTE
from tests.lab.inside.zygote import Zygote

FOLDER, DATADIR = Path("/etc/keyring"), Path("/var/lib/mysql")


class EncryptedBinlogs(Release):
    """The server whose binlogs are encrypted, and each thing that is tried on it."""

    def __init__(self) -> None:
        super().__init__()
        self.canary = secrets.token_hex(24)
        self.copies = 0

    def give_keys(self) -> None:
        """The server gets a keyring, which servers on copies may read, and encrypts its binlogs."""
        FOLDER.mkdir(mode=0o755)
        shutil.chown(FOLDER, "mysql", "mysql")
        keys = FOLDER / "keys"
        keys.touch(mode=0o600)
        shutil.chown(keys, "mysql", "mysql")
        Path("/opt/mysql/usr/sbin/mysqld.my").write_text('{"components": "file://component_keyring_file"}\n')
        component = Path("/opt/mysql/usr/lib/mysql/plugin/component_keyring_file.cnf")
        component.write_text(json.dumps({"path": str(keys), "read_only": False}))
        subprocess.run([SERVER, "stop"], check=True)
        OPTIONS.write_text(f"{OPTIONS.read_text()}\nbinlog_encryption = ON\n")
        subprocess.run([SERVER, "start"], check=True)
        sql("RESET BINARY LOGS AND GTIDS")
        text = CONFIG.read_text()
        assert "\noptions = [" in text, text
        CONFIG.write_text(text.replace("\noptions = [", f'\nsandbox_reads = ["{keys}"]\noptions = [', 1))

    def refusal(self) -> None:
        """A repository without recipients gets no binlog in the clear."""
        assert "would be stored in the clear" in refused("binlog", "archive", "main", "--once")
        assert not [file for file in BUCKET.rglob("*") if "/binlogs/" in str(file)]
        encrypt_repository()

    def binlogs(self) -> Path:
        """The binlogs as the server sends them to a replica: in the clear."""
        self.copies += 1
        folder = Path(f"/root/sent-{self.copies}")
        folder.mkdir()
        index = DATADIR / "binlog.index"
        shutil.copy(index, folder)
        tool = ["/opt/mysql/bin/mysqlbinlog", "--read-from-remote-server", "-uroot", f"--socket={SOCKET}", "--raw"]
        first = Path(index.read_text().splitlines()[0]).name
        subprocess.run([*tool, f"--result-file={folder}/", "--to-last-log", first], check=True)
        return folder

    def hidden(self) -> None:
        """What was written is in no file of a binlog and nowhere in the store, and is read all the same."""
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
        """After a change of the master key everything goes on, also from sets that were made before it."""
        before = zsnapdb("snapshot", "main")["backup_id"]
        sql("ALTER INSTANCE ROTATE BINLOG MASTER KEY")
        zsnapdb("backup", "main")
        zsnapdb("binlog", "archive", "main", "--once")
        zsnapdb("clone", "create", "main", "--from", "live", "--name", "rotated")
        zsnapdb("clone", "destroy", "rotated")
        said = refused("clone", "create", "main", "--from", before, "--name", "older")
        assert "is encrypted with the key" in said, said

    def lost(self) -> None:
        """Without the keyring everything is refused before anything is changed, and the key is named."""
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
    server = EncryptedBinlogs()
    sql("GRANT TRIGGER ON *.* TO zsnapdb@localhost")
    add_innochecksum()
    zygote = Zygote(ZYGOTE)
    names = ("give_keys", "refusal", *ORDER[:-1], "hidden", "rotation", "lost", "rewind")
    cells = [tried(name, getattr(server, name)) for name in names]
    zygote.close()
    Path("/out/campaign.json").write_text(json.dumps([asdict(cell) for cell in cells], indent=1) + "\n")
    wrong = [cell.name for cell in cells if cell.result != "exact"]
    print(f"{len(cells) - len(wrong)} of {len(cells)} exact; not: {', '.join(wrong) or 'none'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
