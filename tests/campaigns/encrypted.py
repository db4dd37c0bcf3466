"""Campaign: a schema with encrypted tables is restored with its keys; without them, the missing keys are reported.

It runs inside a guest (`python3 tests/lab campaign encrypted`). The server gets a key plugin (MariaDB,
file_key_management) or a keyring component (MySQL, component_keyring_file), which the lab's images lack, and is
restarted. Then the zoo of the system tests is created, with encrypted tables. The backup reports the location of the
keys. A restore without the key file reports it; on MariaDB a restore without the plugin's options reports those. With
keys and options, the restored server's own dump of the zoo is equal.
"""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.campaigns.support import restored
from tests.lab.inside import ledger
from tests.system import zoo

SERVER = "/checkout/tests/lab/inside/server"
SOCKET = "/run/mysqld/mysqld.sock"
CONFIG = Path("/etc/zsnapdb/zsnapdb.toml")
FOLDER = Path("/etc/keyring")
OF_MYSQL = (
    "CREATE TABLE `zoo's secret` (id INT PRIMARY KEY, v VARCHAR(40)) ENCRYPTION = 'Y'",
    "CREATE TABLESPACE locked_space ADD DATAFILE 'locked_space.ibd' ENCRYPTION = 'Y' ENGINE = InnoDB",
    "CREATE TABLE `in a locked space` (id INT PRIMARY KEY, v VARCHAR(40)) TABLESPACE locked_space ENCRYPTION = 'Y'",
)
OF_MARIADB = (
    "CREATE TABLE `zoo's secret` (id INT PRIMARY KEY, v VARCHAR(40)) ENCRYPTED = YES",
    "CREATE TABLE `in a locked space` (id INT PRIMARY KEY, v VARCHAR(40)) ENCRYPTED = YES ENCRYPTION_KEY_ID = 2",
    "CREATE TABLE `by pages` (id INT PRIMARY KEY, v TEXT) PAGE_COMPRESSED = 1",
    "INSERT INTO `by pages` VALUES (1, REPEAT('squeeze ', 900))",
)
ROWS = (
    "INSERT INTO `zoo's secret` VALUES (1, 'where the 🐉 sleeps')",
    "INSERT INTO `in a locked space` VALUES (1, 'what the 🐉 eats')",
)


class Site:
    """The guest's server with keys, and zsnapdb."""

    def __init__(self) -> None:
        self.flavour = Path("/etc/lab-flavour").read_text().strip()
        self.bad = 0

    def check(self, what: str, *, is_right: bool, details: str = "") -> None:
        """Print whether a check passed."""
        self.bad += not is_right
        print(f"{'ok  ' if is_right else 'FAIL'} {what} {'' if is_right else details}", flush=True)

    def zsnapdb(self, *words: str) -> tuple[int, str, str]:
        """Run a command. Return its exit code, stdout and stderr."""
        done = subprocess.run(["zsnapdb", *words], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    def sql(self, statements: Iterable[str]) -> None:
        with ledger.connect(SOCKET, "root", "", None) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
                cursor.fetchall()

    def give_keys(self) -> Path:
        """Restart the server with keys. Return the key file."""
        FOLDER.mkdir(mode=0o700)
        shutil.chown(FOLDER, "mysql", "mysql")
        keys = FOLDER / "keys"
        subprocess.run([SERVER, "stop"], check=True)
        if self.flavour == "mysql":
            # The server reads the list of its components next to its program.
            Path("/opt/mysql/usr/sbin/mysqld.my").write_text('{"components": "file://component_keyring_file"}\n')
            # A server that is started as root creates the file as root, and cannot write to it later.
            keys.touch(mode=0o600)
            shutil.chown(keys, "mysql", "mysql")
            component = Path("/opt/mysql/usr/lib/mysql/plugin/component_keyring_file.cnf")
            component.write_text(json.dumps({"path": str(keys), "read_only": False}))
        else:
            keys.write_text("".join(f"{number};{secrets.token_hex(16)}\n" for number in (1, 2)))
            shutil.chown(keys, "mysql", "mysql")
            options = Path("/etc/lab.cnf")
            lines = "plugin_load_add = file_key_management\nfile_key_management_filename = /etc/keyring/keys\n"
            options.write_text(options.read_text() + lines)
        # The servers write encrypted and compressed pages from buffers and in sizes that OpenZFS 2.3 and newer refuse
        # (EINVAL) for files opened with O_DIRECT. MySQL then ends.
        subprocess.run(["zfs", "set", "direct=disabled", "tank"], check=True)
        subprocess.run([SERVER, "start"], check=True)
        return keys

    def build(self) -> None:
        """Create the zoo with its encrypted tables."""
        zoo.Zoo(self.flavour, self.sql).build()
        self.sql((f"USE `{zoo.SCHEMA}`", *(OF_MYSQL if self.flavour == "mysql" else OF_MARIADB), *ROWS))

    def dump(self, socket: str) -> str:
        program = "/opt/mysql/bin/mysqldump" if self.flavour == "mysql" else "mariadb-dump"
        return zoo.dump(program, (f"-S{socket}", "-uroot"), zoo.SCHEMA, self.flavour)

    def restore(self, *words: str) -> tuple[int, str, str]:
        return self.zsnapdb("restore", "main", "--target", restored.TARGET, "--handover", "run", *words)

    def give_options(self) -> None:
        """Add the plugin's options to those of servers on copies."""
        options = '"plugin_load_add=file_key_management", "file_key_management_filename=/etc/keyring/keys"'
        text = CONFIG.read_text()
        assert "\noptions = [" in text, text
        CONFIG.write_text(text.replace("\noptions = [", f"\noptions = [{options}, ", 1))

    def show_keys(self) -> None:
        """Let servers on copies read the key file."""
        text = CONFIG.read_text()
        assert "\noptions = [" in text, text
        CONFIG.write_text(text.replace("\noptions = [", f'\nsandbox_reads = ["{FOLDER}/keys"]\noptions = [', 1))

    def go(self) -> int:
        """Run all checks. Return the number of failures."""
        keys = self.give_keys()
        self.build()
        before = self.dump(SOCKET)
        self.check("the zoo is dumped", is_right="sleeps" in before)
        code, out, said = self.zsnapdb("backup", "main", "--json")
        self.check("the backup names the keys", is_right=code == 0 and str(keys) in out + said, details=out + said)
        if code != 0:
            print(Path("/var/log/lab/server.log").read_text()[-6000:])
            return self.bad
        _, out, said = self.zsnapdb("show", "main", json.loads(out)["backup"]["backup_id"])
        self.check("show names the keys", is_right=str(keys) in out, details=out + said)
        if self.flavour == "mariadb":
            code, out, said = self.restore()
            is_named = "plugin_load_add=file_key_management" in out + said
            self.check("without its options the plugin is named", is_right=code != 0 and is_named, details=out + said)
            restored.remove(None)
            self.give_options()
        away = keys.rename("/etc/keys-away")
        code, out, said = self.restore("--plan")
        self.check("a plan names the missing keys", is_right=str(keys) in out + said, details=out + said)
        code, out, said = self.restore()
        is_named = str(keys) in said and (self.flavour == "mariadb" or "which is encrypted" in said)
        self.check("a restore names them", is_right=code != 0 and is_named, details=f"{code}: {out}{said}")
        restored.remove(None)
        away.rename(keys)
        if self.flavour == "mysql":
            code, out, said = self.restore("--plan")
            self.check("a plan names hidden keys", is_right="sandbox_reads" in out + said, details=out + said)
            self.show_keys()
        self._whole(before)
        return self.bad

    def _whole(self, before: str) -> None:
        code, out, said = self.restore("--json")
        self.check("with the keys it is restored", is_right=code == 0, details=out + said)
        if code != 0:
            return
        made = json.loads(out)
        after = self.dump(f"{made['mount']}/.zsnapdb/server.sock")
        self.check("everything is as it was", is_right=after == before, details=f"{len(before)} {len(after)}")
        restored.remove(made["pid"])


def main() -> int:
    began = time.monotonic()
    site = Site()
    bad = site.go()
    print(f"{site.flavour}: {bad} broken promises; {time.monotonic() - began:.0f} s")
    Path("/out/campaign.json").write_text(json.dumps({"flavour": site.flavour, "broken": bad}) + "\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
