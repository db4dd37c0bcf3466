"""`zsnapdb setup --move` with systemd: a server that ran on ZFS stays there, and no old file replaces a newer one.

Each test kills or breaks one move in the same guest. Then the server is put back on the root filesystem for the next.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.lab import newcomer
from tests.lab.guest import SYSTEMD, Guest, Lab, Outcome
from tests.lab.newcomer import DATADIR, UNITS, shell, sql

FLAVOUR = "mariadb"
UNIT = UNITS[FLAVOUR]
OLD, STAGING = f"{DATADIR}.before-zfs", f"{DATADIR}.on-zfs"
JOURNAL = "/var/lib/zsnapdb/setup/move.json"
FRAGMENT = "/etc/mysql/mariadb.conf.d/zz-zsnapdb-zfs.cnf"
DROP_IN = f"/etc/systemd/system/{UNIT}.d"
SHIM = "/tmp/shim"
ON_ZFS = f"test -d {DATADIR}/data"
"""A condition of a shell: the server would start on the copies."""
GOES_ON = "until [ -e /run/go ]; do sleep 0.1; done"
"""The unit waits here until the signal was sent."""
ANSWERS = 'repository = "file:///srv/backups"\nmove = true\nplain = true\nproof = false\n'
SETUP = ("zsnapdb", "setup", "--answers", "/root/answers.toml", "--yes")
PASSWORD = "ALTER USER root@localhost IDENTIFIED VIA mysql_native_password USING PASSWORD('secret')"


@pytest.fixture(scope="module")
def bare(lab: Lab) -> Iterator[Guest]:
    with Guest.boot(lab, FLAVOUR, init=SYSTEMD) as guest:
        shell(guest, "cp /usr/local/bin/zsnapdb /root/zsnapdb")
        newcomer.strip(guest)
        shell(guest, f"mkdir -p /srv/backups {SHIM}/bin; mv /root/zsnapdb /usr/local/bin/")
        shell(guest, f"cp /checkout/tests/lab/inside/kill-shim {SHIM}/bin/systemctl")
        shell(guest, f"cat > /root/answers.toml <<'END'\n{ANSWERS}END")
        sql(guest, "CREATE TABLE shop.newest (id INT PRIMARY KEY); INSERT INTO shop.newest VALUES (0)")
        sql(guest, "CREATE USER app@localhost IDENTIFIED BY 'app'; GRANT ALL ON *.* TO app@localhost WITH GRANT OPTION")
        yield guest


@pytest.fixture
def guest(bare: Guest) -> Iterator[Guest]:
    yield bare
    go_back(bare)


def go_back(guest: Guest) -> None:
    """Put the server on the root filesystem, as before setup: on its old files, if they were renamed."""
    shell(guest, f"systemctl disable --now zsnapdb-agent || true; systemctl stop {UNIT}; rm -rf {DROP_IN} {SHIM}/at")
    shell(guest, "zfs list -H -o name tank/mysql && zfs destroy -r tank/mysql || true")
    shell(guest, f"[ ! -d {OLD} ] || {{ rmdir {DATADIR} || true; mv -T {OLD} {DATADIR}; }}; rm -rf {STAGING} {JOURNAL}")
    shell(guest, f"rm -rf {FRAGMENT} /etc/mysql/mariadb.conf.d/y-*.cnf /etc/zsnapdb /srv/backups/*")
    shell(guest, f"systemctl daemon-reload; systemctl reset-failed {UNIT} || true; systemctl restart {UNIT}")
    as_app(guest, "ALTER USER root@localhost IDENTIFIED VIA unix_socket")


def setup(guest: Guest, killed_at: str = "") -> Outcome:
    """Run the setup. `killed_at`: the number of its call of systemctl, and `before` or `after` it."""
    shell(guest, f"rm -f {SHIM}/count {SHIM}/at; [ -z '{killed_at}' ] || echo {killed_at} > {SHIM}/at")
    done = guest.run(list(SETUP), env={"PATH": f"{SHIM}/bin:/usr/local/bin:/usr/sbin:/usr/bin"}, timeout=900)
    shell(guest, f"rm -f {SHIM}/at")
    assert (done.code == 137) == bool(killed_at), done.stdout + done.stderr
    return done


def as_app(guest: Guest, statement: str) -> str:
    argv = ["mariadb", "-uapp", "-papp", f"--socket={newcomer.SOCKET}", "-N", "-e", statement]
    return guest.run(argv, timeout=120).check().stdout.strip()


def pid(guest: Guest) -> str:
    return shell(guest, f"systemctl show -p MainPID --value {UNIT}").strip()


def snapshots(guest: Guest) -> list[str]:
    return shell(guest, "zfs list -H -t snapshot -o name").split()


def check_ended_on_zfs(guest: Guest) -> None:
    """Check that the server runs on ZFS and nothing of the move is left but the old files."""
    assert shell(guest, f"readlink /proc/{pid(guest)}/cwd").strip() == f"{DATADIR}/data"
    assert shell(guest, f"findmnt -n -o SOURCE -T {DATADIR}/data").strip() == "tank/mysql/data"
    shell(guest, f"[ ! -e {JOURNAL} ]; [ -d {OLD}/mysql ]; [ ! -e {STAGING} ]")
    assert [name for name in snapshots(guest) if "@zsnapdb-move-" in name] == []


def test_a_server_that_started_on_zfs_is_not_stopped_by_a_later_setup_and_no_old_file_replaces_its_files(
    guest: Guest,
) -> None:
    setup(guest, killed_at="2 after")
    as_app(guest, "INSERT INTO shop.newest VALUES (1)")
    # A person goes back to the old files, and does not know what the record of the move is for.
    shell(guest, f"cp {FRAGMENT} /root; systemctl stop {UNIT}; zfs set mountpoint={STAGING} tank/mysql")
    shell(guest, f"rmdir {DATADIR}; mv -T {OLD} {DATADIR}; rm {FRAGMENT}; systemctl start {UNIT}")
    process, before = pid(guest), shell(guest, f"cd {STAGING}; find . -type f | sort | xargs sha256sum")
    refused = setup(guest)
    assert (pid(guest), refused.code) == (process, 4), refused.stderr
    assert "Nothing is copied over them" in refused.stderr
    assert shell(guest, f"cd {STAGING}; find . -type f | sort | xargs sha256sum") == before
    shell(guest, f"systemctl stop {UNIT}; mv -T {DATADIR} {OLD}; zfs set mountpoint={DATADIR} tank/mysql")
    shell(guest, f"cp /root/{FRAGMENT.rpartition('/')[2]} {FRAGMENT}; systemctl start {UNIT}")
    as_app(guest, "INSERT INTO shop.newest VALUES (2)")
    sql(guest, PASSWORD)
    process = pid(guest)
    again = setup(guest)
    assert (pid(guest), again.code) == (process, 0), again.stderr
    assert as_app(guest, "SELECT COUNT(*) FROM shop.newest") == "3"
    check_ended_on_zfs(guest)


def test_a_server_that_lets_root_in_no_more_stays_on_zfs_though_setup_is_interrupted_at_its_start(
    guest: Guest,
) -> None:
    shell(
        guest,
        f"echo \"{PASSWORD};\" > /etc/mysql/first.sql; printf '[mysqld]\\ninit_file=/etc/mysql/first.sql\\n'"
        " > /etc/mysql/mariadb.conf.d/y-first.cnf",
    )
    drop_in(guest, f"ExecStartPre=+/bin/sh -c 'if {ON_ZFS}; then touch /run/at; {GOES_ON}; fi'")
    interrupted(guest)
    as_app(guest, "INSERT INTO shop.newest VALUES (3)")
    check_ended_on_zfs(guest)


def test_a_server_is_put_back_only_as_long_as_it_never_opened_its_copies(guest: Guest) -> None:
    drop_in(guest, f"ExecStartPre=/bin/sh -c '! {ON_ZFS}'", f"ExecStopPost=+/bin/sh -c 'touch /run/at; {GOES_ON}'")
    interrupted(guest)
    assert sql(guest, "SELECT @@datadir") == f"{DATADIR}/", "it was not started again"
    back = setup(guest)
    assert back.code == 5, back.stderr
    assert "runs on its old files again" in back.stderr
    sql(guest, "INSERT INTO shop.newest VALUES (4)")
    drop_in(guest, f"ExecStartPost=/bin/sh -c '! {ON_ZFS}'", "Restart=no")
    left = setup(guest)
    assert left.code == 5, left.stderr
    assert "It was not put back on its old files: the copies were changed" in left.stderr
    assert f"journalctl -u {UNIT}" in left.stderr
    shell(guest, f"[ -d {OLD}/mysql ]")
    drop_in(guest)
    assert setup(guest).code == 0
    assert sql(guest, "SELECT MAX(id) FROM shop.newest") == "4"
    check_ended_on_zfs(guest)


def interrupted(guest: Guest) -> None:
    """Run the setup, and send Ctrl-C to it and its commands while the unit waits, which has made /run/at."""
    shell(guest, "rm -f /run/at /run/go")
    running = guest.spawn([*SETUP])
    shell(guest, "until [ -e /run/at ]; do sleep 0.1; done; rm /run/at")
    running.signal(signal.SIGINT)
    shell(guest, "touch /run/go")
    assert running.wait(600).code == 130, running.output(2)


def drop_in(guest: Guest, *lines: str) -> None:
    """Change the unit of the server by these lines alone."""
    text = "\\n".join(["[Service]", *lines])
    shell(guest, f'mkdir -p {DROP_IN}; rm -f {DROP_IN}/*; printf "{text}\\n" > {DROP_IN}/test.conf')
    shell(guest, f"systemctl daemon-reload; systemctl reset-failed {UNIT} || true")
