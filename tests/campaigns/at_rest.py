"""Campaign: a server on datasets that ZFS encrypts is backed up, cloned and rewound, and none of its data is readable.

It runs inside a guest (`python3 tests/lab campaign at_rest --root own|above --send plain|raw`). The server's files move
to encrypted datasets. With `own` the parent volume is the encryption root, with `above` a dataset above it.

1. A text is written, and then searched in the pool's device and in the store.
2. Operations that must be refused are tried.
3. All features are tried with rows whose truth is known (the campaign `releases`).
4. After a rewind the replaced server is reaped, and the key is unloaded and loaded as at boot. Backup and clone work.

With `raw` the streams are those of `zfs send -w`: the key is removed, changed and restored, and a restored server
replaces the original.
"""

from __future__ import annotations

import argparse
import json
import mmap
import secrets
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.campaigns.releases import CONFIG, ORDER, SERVER, Release, rows, sql, tried, zsnapdb
from tests.campaigns.support.faults import add_innochecksum
from tests.lab.inside.zygote import QUICK, Zygote
from tests.lab.inside.zygote import SOCKET as ZYGOTE

KEY = Path("/etc/zsnapdb/pool-key")
IDENTITY = Path("/etc/zsnapdb/identity")
AWAY = KEY.with_suffix(".away")
DEVICE = Path("/dev/ubdb")
BUCKET = Path("/srv/s3")
ABOVE = "tank/secret"


def run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
    return done.stdout


def value(dataset: str, key: str) -> str:
    return run("zfs", "get", "-H", "-o", "value", key, dataset).strip()


def refused(*words: str) -> str:
    """Run a command that must be refused, and return its output: a refused plan is on stdout, an error on stderr."""
    done = subprocess.run([QUICK, *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 4, f"{' '.join(words)} ended with {done.returncode}: {done.stderr}"
    return done.stderr + done.stdout


def encrypt_repository(*lines: str) -> None:
    """Configure a recipient whose identity is on this host, and more lines of the encryption section."""
    run(QUICK, "key", "generate", "--identity", str(IDENTITY))
    recipient = next(w for w in IDENTITY.read_text().split() if w.startswith("age1"))
    CONFIG.write_text(
        f'{CONFIG.read_text()}\n[repository.s3.encryption]\nrecipients = ["{recipient}"]\n'
        f'identity_file = "{IDENTITY}"\n' + "".join(f"{line}\n" for line in lines)
    )


class EncryptedServer(Release):
    """The server on encrypted datasets: `root` is their encryption root, `volume` the parent volume."""

    def __init__(self, *, is_own: bool, is_raw: bool) -> None:
        super().__init__()
        self.is_raw = is_raw
        self.root = "tank/mysql" if is_own else ABOVE
        self.volume = "tank/mysql" if is_own else f"{ABOVE}/mysql"
        self.is_own = is_own
        self.canary = secrets.token_hex(24)
        self.key = ("-o", "encryption=on", "-o", "keyformat=passphrase", "-o", f"keylocation=file://{KEY}")

    def move(self) -> None:
        """Move the server's files to encrypted datasets and destroy the plain ones."""
        KEY.write_text(secrets.token_hex(16))
        key = self.key
        run(SERVER, "stop")
        run("zfs", "snapshot", "-r", "tank/mysql@moved")
        run("zfs", "unmount", "tank/mysql/data")
        run("zfs", "unmount", "tank/mysql")
        run("zfs", "rename", "tank/mysql", "tank/plain")
        if not self.is_own:
            run("zfs", "create", *key, "-o", "mountpoint=none", ABOVE)
        outer = (*(key if self.is_own else ()), "-o", "recordsize=128K", "-o", "mountpoint=/var/lib/mysql")
        for name, options in (("", outer), ("/data", ("-o", "recordsize=16K"))):
            with subprocess.Popen(["zfs", "send", "-L", f"tank/plain{name}@moved"], stdout=subprocess.PIPE) as sent:
                words = ["zfs", "receive", *options, f"{self.volume}{name}"]
                subprocess.run(words, stdin=sent.stdout, check=True)
            assert sent.returncode == 0
        run("zfs", "destroy", "-r", "tank/plain")
        run("zfs", "destroy", "-r", f"{self.volume}@moved")
        CONFIG.write_text(CONFIG.read_text().replace('"tank/mysql', f'"{self.volume}'))
        for name in (self.volume, f"{self.volume}/data"):
            assert value(name, "encryptionroot") == self.root, value(name, "encryptionroot")
        run(SERVER, "start")

    def refusal(self) -> None:
        """Without recipients nothing is stored in the repository, but a local snapshot set is still created."""
        assert "would be stored unencrypted" in refused("backup", "main", "--plan")
        assert "would be stored unencrypted" in refused("backup", "main")
        assert "would be stored unencrypted" in refused("binlog", "archive", "main", "--once")
        assert not [file for file in BUCKET.rglob("*") if "/chunks/" in str(file) or "/binlogs/" in str(file)]
        zsnapdb("snapshot", "main")
        assert "would be stored unencrypted" in refused("backup", "main", "--set", "latest")
        if self.is_raw:
            self.without_recipients()
        encrypt_repository(*(("accept_plain = true",) if self.is_raw else ()))

    def without_recipients(self) -> None:
        """Raw backups need no recipients, but a restore of them needs the key file. The archive needs recipients."""
        CONFIG.write_text(f'{CONFIG.read_text()}\n[repository.s3.stream]\nsend = "raw"\n')
        made = zsnapdb("backup", "main")["backup"]
        assert made["full"]
        assert zsnapdb("verify", "main", "--deep")["raw"] == [made["backup_id"]]
        assert "would be stored unencrypted" in refused("binlog", "archive", "main", "--once")
        to = ("restore", "main", "--to", made["backup_id"], "--plan", "--target", "tank/beside")
        assert "no file has its key" in refused(*to)
        CONFIG.write_text(f'{CONFIG.read_text()}\n[instance.main.encryption]\nkey_file = "{KEY}"\n')
        KEY.rename(AWAY)
        assert "cannot be used: No such file" in refused(*to)
        AWAY.rename(KEY)
        assert "its key is in" in json.dumps(zsnapdb(*to)["findings"])

    def hidden(self) -> None:
        """The server's data is not readable in the pool's device or in the store."""
        sql(
            "CREATE DATABASE canary",
            "CREATE TABLE canary.t (id INT PRIMARY KEY, v VARCHAR(100))",
            f"INSERT INTO canary.t VALUES (1, '{self.canary}')",
        )
        stored = zsnapdb("backup", "main", "--full")["backup"]
        if self.is_raw:
            sizes = [(volume["plain_bytes"], volume["stored_bytes"]) for volume in stored["volumes"]]
            ratio = sum(size for _, size in sizes) / sum(size for size, _ in sizes)
            print(f"stored bytes of the streams' bytes: {ratio:.4f}")
            assert ratio <= 1.05, sizes
        sql("INSERT INTO canary.t SELECT 2, v FROM canary.t")
        zsnapdb("backup", "main")
        made = zsnapdb("clone", "create", "main", "--from", "live", "--name", "seen")
        for name in made["clone"]["volumes"].values() if "volumes" in made["clone"] else ():
            assert value(name, "encryption") != "off", name
        said = refused("clone", "detach", "seen")
        assert "would be unencrypted" in said, said
        zsnapdb("clone", "destroy", "seen")
        run("zpool", "sync", "tank")
        assert not self.is_in_the_clear()
        # Verify the search itself: it finds a file in a dataset without encryption.
        run("zfs", "create", "-o", "mountpoint=/mnt/clear", "-o", "compression=off", "tank/clear")
        Path("/mnt/clear/text").write_text(self.canary)
        run("zpool", "sync", "tank")
        assert self.is_in_the_clear()
        run("zfs", "destroy", "tank/clear")

    def is_in_the_clear(self) -> bool:
        text = self.canary.encode()
        with DEVICE.open("rb") as device:
            size = device.seek(0, 2)
            with mmap.mmap(device.fileno(), size, access=mmap.ACCESS_READ) as pool:
                if pool.find(text) >= 0:
                    return True
        return any(text in file.read_bytes() for file in BUCKET.rglob("*") if file.is_file())

    def changed_key(self) -> None:
        """After `zfs change-key` an increment on older backups is stored and restored."""
        older = zsnapdb("backup", "main")["backup"]["backup_id"]
        KEY.rename(AWAY)
        KEY.write_text(secrets.token_hex(16))
        run("zfs", "change-key", "-o", f"keylocation=file://{KEY}", self.root)
        made = zsnapdb("backup", "main")["backup"]
        assert not made["full"]
        zsnapdb("drill", "main")
        if self.is_raw:
            self.drilled_only_with(AWAY, older)

    def drilled_only_with(self, key: Path, backup_id: str) -> None:
        """A backup from before the change is refused without the old key, and drilled with it."""
        for words in (("--plan",), ()):
            said = refused("drill", "main", "--to", backup_id, *words)
            assert "has another key than the one of then" in said, said
        now = KEY.read_text()
        KEY.write_text(key.read_text())
        try:
            zsnapdb("drill", "main", "--to", backup_id)
        finally:
            KEY.write_text(now)

    def without_key(self) -> None:
        """Without the key a chain is consolidated and verified, but its restore is refused before any change."""
        KEY.rename(AWAY)
        try:
            made = zsnapdb("consolidate", "main")
            zsnapdb("verify", "main", "--deep")
            said = refused("drill", "main", "--plan")
            assert "cannot be used: No such file" in said, said
        finally:
            AWAY.rename(KEY)
        zsnapdb("drill", "main", "--to", made["backup"]["backup_id"])
        assert not zsnapdb("backup", "main")["backup"]["full"]

    def places(self) -> None:
        """The plan of a restore reports a target without encryption, but not a target below an encrypted dataset."""
        if not self.is_own:
            words = ("restore", "main", "--to", "latest-backup", "--plan", "--target")
            seen = json.dumps(zsnapdb(*words, "tank/beside")["findings"])
            assert ("is unencrypted" in seen) != self.is_raw, seen
            seen = json.dumps(zsnapdb(*words, f"{ABOVE}/beside")["findings"])
            assert "is unencrypted" not in seen, seen
        run("zfs", "create", *self.key, "-o", "mountpoint=none", "tank/locked")
        run("zfs", "unload-key", "tank/locked")
        said = refused("restore", "main", "--to", "latest-backup", "--plan", "--target", "tank/locked/restored")
        assert "the key of tank/locked is not loaded" in said, said
        run("zfs", "destroy", "tank/locked")
        run(SERVER, "stop")
        try:
            to = ("restore", "main", "--to", "latest-backup", "--server-id", "77")
            promote = (*to, "--handover", "promote", "--plan")
            said = refused(*promote, "--target", "tank/zsnapdb/elsewhere", "--origin", "local")
            assert "encryption root" in said, said
            if self.is_raw:
                zsnapdb(*promote, "--target", "tank/zsnapdb/elsewhere")
            else:
                said = refused(*promote, "--target", "tank/zsnapdb/elsewhere")
                assert "is encrypted" in said, said
        finally:
            run(SERVER, "start")

    def rewind(self) -> None:
        """A rewind in place reaches the point with the same encryption; with keylocation=prompt no key is requested."""
        run("zfs", "set", "keylocation=prompt", self.root)
        super().rewind()
        for name in (self.volume, f"{self.volume}/data"):
            assert value(name, "encryption") != "off"
            assert value(name, "encryptionroot") in (self.root, self.volume), value(name, "encryptionroot")
        run("zfs", "set", f"keylocation=file://{KEY}", value(self.volume, "encryptionroot"))

    def exchanged(self) -> None:
        """A restore from the repository replaces the server, with the same encryption."""
        expected = rows()
        made = zsnapdb("backup", "main")["backup"]["backup_id"]
        run(SERVER, "stop")
        to = ("restore", "main", "--to", made, "--origin", "repository", "--target", "tank/zsnapdb/elsewhere")
        zsnapdb(*to, "--handover", "promote", "--server-id", "77")
        for name in (self.volume, f"{self.volume}/data"):
            assert value(name, "encryptionroot") == name, value(name, "encryptionroot")
        run(SERVER, "start")
        assert rows() == expected

    def after(self) -> None:
        """The replaced server is reaped, the host boots, and backup and clone continue."""
        expected = rows()
        zsnapdb("backup", "main")
        CONFIG.write_text(f'{CONFIG.read_text()}\n[restore]\nkeep_replaced = "1s"\n')
        time.sleep(2)
        # The dataset that was replaced first depends on a snapshot of the one replaced later, so it is destroyed first.
        for _ in range(2 if self.is_raw else 1):
            said = run(QUICK, "reap")
        left = run("zfs", "list", "-H", "-o", "name").split()
        kept = [name for name in left if "replaced" in name]
        # A dataset that was fetched for clones depends on its snapshot, and stays longer.
        assert not kept or (self.is_raw and "depend on the" in said), f"{left}: {said}"
        assert value(f"{self.volume}/data", "keystatus") == "available"
        made = zsnapdb("clone", "create", "main", "--from", "live", "--name", "later")
        assert self.in_clone(made) == expected
        zsnapdb("clone", "destroy", "later")
        run(SERVER, "stop")
        listed = run("zfs", "list", "-H", "-o", "name,encryptionroot,mounted")
        for name, of, mounted in reversed([line.split("\t") for line in listed.splitlines()]):
            if of != "-" and mounted == "yes":
                run("zfs", "unmount", name)
        run("zfs", "unload-key", "-a")
        assert value(f"{self.volume}/data", "keystatus") == "unavailable"
        # A dataset that was restored before the key change keeps the old key.
        for root in sorted({value(name, "encryptionroot") for name in (self.volume, f"{self.volume}/data")}):
            run("zfs", "load-key", root)
        run("zfs", "mount", self.volume)
        run("zfs", "mount", f"{self.volume}/data")
        run(SERVER, "start")
        assert rows() == expected
        zsnapdb("backup", "main")
        zsnapdb("drill", "main")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", choices=("own", "above"), default="own")
    parser.add_argument("--send", choices=("plain", "raw"), default="plain")
    parser.add_argument("--short", action="store_true", help="without random points")
    parser.add_argument("--only", nargs="+", help="these cells, in this order")
    words = parser.parse_args()
    server = EncryptedServer(is_own=words.root == "own", is_raw=words.send == "raw")
    sql("GRANT TRIGGER ON *.* TO zsnapdb@localhost")
    add_innochecksum()
    zygote = Zygote(ZYGOTE)
    points = () if words.short else ("random_points",)
    raw = (("without_key",), ("exchanged",)) if server.is_raw else ((), ())
    names = ("move", "refusal", "hidden", *ORDER[:-1], *points, "changed_key", *raw[0], "places", "rewind", *raw[1])
    names = (*names, "after")
    cells = [tried(name, getattr(server, name)) for name in words.only or names]
    zygote.close()
    Path("/out/campaign.json").write_text(json.dumps([asdict(cell) for cell in cells], indent=1) + "\n")
    wrong = [cell.name for cell in cells if cell.result != "exact"]
    print(f"{server.root}: {len(cells) - len(wrong)} of {len(cells)} exact; not: {', '.join(wrong) or 'none'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
