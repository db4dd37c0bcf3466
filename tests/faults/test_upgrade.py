"""An upgrade between releases is tested on a clone: MariaDB 10.11 of Debian 12 to 11.8 of Debian 13."""

from __future__ import annotations

import json

from tests.lab import servers
from tests.lab.guest import Guest, Lab

SET_UP = r"""
set -eu
mkdir -p /mnt/older && busybox mount -t hostfs -o "$1" older /mnt/older
cp -a /mnt/older/lib-lab/. /usr/lib/x86_64-linux-gnu/ && ldconfig
zfs create -o recordsize=16K -o mountpoint=/var/lib/old tank/old
mkdir -p /var/lib/old/data && chown -R mysql:mysql /var/lib/old
cat > /etc/old.cnf <<'END'
[mariadbd]
user = mysql
basedir = /mnt/older/usr
lc_messages_dir = /mnt/older/usr/share/mysql
character_sets_dir = /mnt/older/usr/share/mysql/charsets
datadir = /var/lib/old/data
log_bin = /var/lib/old/binlog
socket = /run/old.sock
pid_file = /run/mysqld/old.pid
log_error = /var/log/lab/old.log
bind_address = 127.0.0.1
port = 3307
server_id = 7
binlog_format = ROW
innodb_use_native_aio = OFF
innodb_doublewrite = OFF
innodb_buffer_pool_size = 64M
innodb_log_file_size = 32M
END
sed -i 's|/run/old.sock|/run/mysqld/old.sock|' /etc/old.cnf
/mnt/older/usr/bin/mariadb-install-db --defaults-file=/etc/old.cnf --auth-root-authentication-method=socket \
  --skip-test-db >/tmp/install.log 2>&1 ||
  { cat /tmp/install.log; exit 1; }
touch /var/log/lab/old.log && chown mysql /var/log/lab/old.log
setsid /mnt/older/usr/sbin/mariadbd --defaults-file=/etc/old.cnf </dev/null >/dev/null 2>&1 &
for n in $(seq 1500); do
  mariadb --skip-ssl -uroot -S /run/mysqld/old.sock -e 'SELECT 1' >/dev/null 2>&1 && break
  sleep 0.2
done
sed -n "/^-- both/,/^-- end/p; /^-- mariadb/,/^-- end/p" /checkout/tests/lab/inside/accounts.sql |
  mariadb --skip-ssl -uroot -S /run/mysqld/old.sock
mariadb --skip-ssl -uroot -S /run/mysqld/old.sock ledger -e "
  CREATE TABLE things (id INT PRIMARY KEY, name VARCHAR(50), made TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
    price DECIMAL(8,2), KEY (name));
  INSERT INTO things (id, name, price) SELECT seq, CONCAT('thing ', seq), seq / 7 FROM seq_1_to_2000;"
cat > /tmp/old.toml <<'END'
[instance.old]
socket = "/run/mysqld/old.sock"
user = "zsnapdb"
password_file = "/etc/zsnapdb/main.password"
volumes = { data = "tank/old" }
repository = "disk"
[instance.old.server]
binary = "/mnt/older/usr/sbin/mariadbd"
options = [
  "innodb_use_native_aio=OFF", "innodb_buffer_pool_size=64M", "loose_lc_messages_dir=/mnt/older/usr/share/mysql"
]
[repository.disk]
url = "file:///srv/old"
END
mkdir -p /srv/old
"""


def test_an_upgrade_to_the_next_release_is_rehearsed_and_the_source_is_left_alone(lab: Lab) -> None:
    folder = servers.tree(lab.cache, "mariadb-10.11")
    with Guest.boot(lab, "mariadb") as guest:
        guest.run(["sh", "-c", SET_UP, "sh", str(folder)]).check()
        guest.run(["zsnapdb", "backup", "old", "--config", "/tmp/old.toml"], timeout=180).check()
        before = guest.run(["zfs", "list", "-H", "-o", "name"]).check().stdout
        words = [
            "--binary",
            "/usr/sbin/mariadbd",
            "--query",
            "SELECT COUNT(*), SUM(price), MIN(made) FROM ledger.things",
            "--json",
        ]
        done = guest.run(
            ["zsnapdb", "clone", "upgrade-test", "old", *words, "--config", "/tmp/old.toml"], timeout=300
        ).check()
        result = json.loads(done.stdout)
        assert result["old_version"].startswith("10.11.")
        assert result["new_version"].startswith("11.")
        assert result["problems"] == []
        assert [(query["rows_before"], query["equal"]) for query in result["queries"]] == [(1, True)]
        assert "ledger.things" in [table["table"] for table in result["tables"]]
        assert "Phase" in result["upgrade_output"]
        after = guest.run(["zfs", "list", "-H", "-o", "name"]).check().stdout
        assert set(after.split()) - set(before.split()) <= {"tank/zsnapdb", "tank/zsnapdb/clones"}
        still = (
            guest.run(
                [
                    "mariadb",
                    "--skip-ssl",
                    "-uroot",
                    "-S",
                    "/run/mysqld/old.sock",
                    "-N",
                    "-e",
                    "SELECT VERSION(), COUNT(*) FROM ledger.things",
                ]
            )
            .check()
            .stdout
        )
        assert still.startswith("10.11.")
        assert still.split()[-1] == "2000"
        an_upgraded_host_starts_no_newer_program_on_older_files(guest)


def an_upgraded_host_starts_no_newer_program_on_older_files(guest: Guest) -> None:
    """The installed program is now 11.8. Every command refuses it on files of 10.11, and uses the old one if named."""
    text = guest.run(["cat", "/tmp/old.toml"]).check().stdout
    old = 'binary = "/mnt/older/usr/sbin/mariadbd"'
    guest.run(["sh", "-c", f"sed 's|^{old}$||' /tmp/old.toml > /tmp/new.toml"]).check()
    both = text.replace(old, 'binaries = { "10.11" = "/mnt/older/usr/sbin/mariadbd" }')
    guest.run(["sh", "-c", 'printf %s "$1" > /tmp/both.toml', "sh", both]).check()
    select = ["SELECT COUNT(*) FROM ledger.things", "--format", "csv"]
    for words in (
        ["clone", "create", "old", "--name", "newer"],
        ["query", "old", *select],
        ["rescue", "old", "--table", "ledger.things", "--into", "/tmp/things.sql"],
        ["restore", "old", "--to", "latest-backup", "--plan"],
    ):
        done = guest.run(["zsnapdb", *words, "--config", "/tmp/new.toml"], timeout=180)
        assert (done.code, "another series" in done.stdout + done.stderr) == (4, True), (words, done.stderr)
    said = guest.run(["zsnapdb", "doctor", "old", "--config", "/tmp/new.toml"]).stdout
    assert "need a server program of MariaDB 10.11" in said
    assert "keep the old program" in said
    planned = ["restore", "old", "--to", "latest-backup", "--plan"]
    guest.run(["zsnapdb", *planned, "--config", "/tmp/both.toml"], timeout=180).check()
    binary = ["--binary", "/mnt/older/usr/sbin/mariadbd"]
    done = guest.run(["zsnapdb", "query", "old", *select, *binary, "--config", "/tmp/new.toml"], timeout=180).check()
    assert done.stdout.split()[-1] == "2000"
