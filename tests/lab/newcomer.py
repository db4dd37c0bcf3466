"""A guest as a host without zsnapdb: systemd, a server in its usual folder, an empty pool."""

from __future__ import annotations

import subprocess
from pathlib import Path

from .guest import CHECKOUT, Guest, Lab
from .host import CERTIFICATES, Bind, LabError, in_root

DATADIR = "/var/lib/mysql"
SOCKET = "/run/mysqld/mysqld.sock"
UNITS = {"mysql": "mysql.service", "mariadb": "mariadb.service"}
CLIENTS = {"mysql": "/opt/mysql/bin/mysql", "mariadb": "mariadb"}
_MYSQL_UNIT = """[Unit]
Description=MySQL
[Service]
User=mysql
ExecStart=/opt/mysql/bin/mysqld
TimeoutStopSec=600
"""
_INNOCHECKSUM = """#!/bin/sh
cd /opt/mysql/usr
exec lib64/ld-linux-x86-64.so.2 --library-path lib/x86_64-linux-gnu bin/innochecksum "$@"
"""
_MYSQL_OPTIONS = """[mysqld]
datadir = /var/lib/mysql
socket = /run/mysqld/mysqld.sock
pid_file = /run/mysqld/mysqld.pid
mysqlx = OFF
innodb_buffer_pool_size = 128M
performance_schema = OFF
"""
"""As in Debian's MySQL packages: the data directory is set in a file that sorts after 9."""
_ROWS = (
    "CREATE DATABASE shop; CREATE TABLE shop.orders (id INT PRIMARY KEY AUTO_INCREMENT, body VARCHAR(200));"
    "INSERT INTO shop.orders (body) VALUES (REPEAT('x', 200));"
    + "INSERT INTO shop.orders (body) SELECT SHA2(id, 256) FROM shop.orders;"
    * 12
)
_CHECKSUM = "SELECT COUNT(*), SUM(CRC32(CONCAT(id, body))) FROM shop.orders"


def shell(guest: Guest, script: str, timeout: float = 900.0) -> str:
    """Run a shell script in the guest and return its output. LabError if it fails."""
    return guest.run(["sh", "-ec", script], timeout=timeout).check().stdout


def sql(guest: Guest, statement: str) -> str:
    """Return the client's output for a statement, without column names."""
    argv = [CLIENTS[guest.flavour], "-uroot", f"--socket={SOCKET}", "-N", "-e", statement]
    return guest.run(argv, timeout=600).check().stdout.strip()


def rows(guest: Guest) -> str:
    """Return the number of rows and a checksum of their contents."""
    return sql(guest, _CHECKSUM)


def strip(guest: Guest, *, is_adopted: bool = False) -> None:
    """Remove the lab's server, its configuration and zsnapdb, and start a server as Debian's packages do.

    `is_adopted`: its data directory is a dataset. Otherwise it is on the root filesystem.
    """
    shell(guest, "/checkout/tests/lab/inside/server stop; zfs destroy -r tank/mysql; rm -rf /etc/zsnapdb /etc/lab.cnf")
    # A folder of the image's lower layer cannot be renamed (overlayfs). So create a new one, as on a plain filesystem.
    shell(guest, f"rm -rf {DATADIR} /var/lib/zsnapdb /usr/local/bin/zsnapdb; mkdir -p {DATADIR}")
    if is_adopted:
        shell(guest, f"zfs create -o recordsize=16K -o mountpoint={DATADIR} tank/db")
    shell(guest, f"chown mysql:mysql {DATADIR}; chmod 750 {DATADIR}")
    if guest.flavour == "mysql":
        folder = "/etc/mysql/mysql.conf.d"
        _write(guest, f"{folder}/mysqld.cnf", _MYSQL_OPTIONS)
        _write(guest, "/etc/mysql/my.cnf", f"!includedir /etc/mysql/conf.d/\n!includedir {folder}/\n")
        _write(guest, f"/etc/systemd/system/{UNITS['mysql']}", _MYSQL_UNIT)
        _write(guest, "/opt/mysql/bin/innochecksum", _INNOCHECKSUM)
        shell(guest, "chmod 755 /opt/mysql/bin/innochecksum")
        shell(guest, "rm -rf /etc/mysql/mariadb.conf.d; /opt/mysql/bin/mysqld --initialize-insecure --user=mysql 2>&1")
    else:
        shell(guest, "mariadb-install-db --user=mysql --auth-root-authentication-method=socket --skip-test-db")
    shell(guest, f"systemctl daemon-reload; systemctl start {UNITS[guest.flavour]}")
    shell(guest, f"i=0; until [ -S {SOCKET} ]; do sleep 0.2; i=$((i + 1)); [ $i -lt 600 ]; done")
    sql(guest, _ROWS)


def _write(guest: Guest, path: str, text: str) -> None:
    shell(guest, f"mkdir -p $(dirname {path}); rm -f {path}; cat > {path} <<'END'\n{text}END")


def package(lab: Lab, folder: Path) -> Path:
    """Build the Debian package into the folder. LabError if the build fails."""
    binds = [Bind(CHECKOUT, str(CHECKOUT)), Bind(folder, "/out")]
    binds += [Bind(CERTIFICATES.parent, "/etc/ssl/certs")] if CERTIFICATES.exists() else []
    python = "/opt/venv/bin/python"
    argv = [python, "-m", "tools.debian_package", "/out"]
    env = {"PYTHONPATH": f"{CHECKOUT}/packaging:{CHECKOUT}", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        in_root(lab.root, argv, binds, cwd=str(CHECKOUT), env=env, own_processes=True), capture_output=True, text=True
    )
    if done.returncode != 0:
        raise LabError(f"the package cannot be built: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return max(folder.glob("zsnapdb_*.deb"), key=lambda file: file.stat().st_mtime)
