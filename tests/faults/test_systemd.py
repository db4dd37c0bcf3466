"""Where systemd is process 1, clones are transient units: limited, and independent of the service that made them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab.guest import SYSTEMD, Guest, Lab

from .in_guest import QUICK, speed_up

CONFIG = "/etc/zsnapdb/zsnapdb.toml"
LAST = ("copy@main", "doctor@main", "reap", "status")
"""The units that look at, or pass on, what the others made."""


@pytest.fixture(scope="module")
def guest(lab: Lab) -> Iterator[Guest]:
    with Guest.boot(lab, "mariadb", init=SYSTEMD) as booted:
        speed_up(booted)
        booted.run([QUICK, "backup"]).check()
        yield booted


def said(guest: Guest, *argv: str) -> str:
    return guest.run(list(argv), timeout=600).check().stdout.strip()


def configured(guest: Guest, name: str, *lines: str) -> str:
    path = f"/tmp/{name}.toml"
    text = said(guest, "cat", CONFIG).replace(
        "[instance.main.server]\n", "[instance.main.server]\n" + "".join(f"{line}\n" for line in lines)
    )
    guest.run(["sh", "-c", f"cat > {path} <<'END'\n{text}\nEND"]).check()
    return path


def units(guest: Guest) -> str:
    return said(guest, "systemctl", "list-units", "--all", "--no-legend", "--plain", "zsnapdb-*")


def processes(guest: Guest) -> dict[str, Any]:
    clones = json.loads(said(guest, QUICK, "clone", "list", "--json"))["clones"]
    return {clone["name"]: clone["pid"] for clone in clones}


def test_a_clone_is_a_unit_with_its_limits_and_gone_from_systemd_with_its_end(guest: Guest) -> None:
    config = configured(guest, "limited", 'memory = "1GiB"', "processors = 0.5", "nice = 5")
    pid = json.loads(
        said(guest, "zsnapdb", "clone", "create", "main", "--name", "limited", "--json", "--config", config)
    )["clone"]["pid"]
    unit = said(guest, "cat", f"/proc/{pid}/cgroup").rpartition("/")[2]
    assert unit.startswith("zsnapdb-limited-")
    folder = "/sys/fs/cgroup" + said(guest, "cat", f"/proc/{pid}/cgroup").rpartition(":")[2]
    if guest.run(["test", "-e", f"{folder}/memory.max"]).code == 0:
        # The kernel has the controllers and applies the limits. The older kernel of the lab has no controllers.
        assert said(guest, "cat", f"{folder}/memory.max") == str(1 << 30)
        assert 0 < int(said(guest, "cat", f"{folder}/memory.current")) < 1 << 30
        assert said(guest, "cat", f"{folder}/cpu.max") == "50000 100000"
        throttling = dict(line.split() for line in said(guest, "cat", f"{folder}/cpu.stat").splitlines())
        assert int(throttling["nr_throttled"]) > 0, "the clone never had to wait for its half of a processor"
    shown = said(guest, "systemctl", "show", "--property=User,MainPID,MemoryMax,CPUQuotaPerSecUSec", unit).split()
    # The launcher of the sandbox starts as root, and the server has its account from the first instruction.
    assert set(shown) == {"User=", f"MainPID={pid}", "MemoryMax=1073741824", "CPUQuotaPerSecUSec=500ms"}
    assert said(guest, "stat", "-c", "%U", f"/proc/{pid}") == "mysql"
    (line,) = (
        line for line in said(guest, "cat", f"/proc/{pid}/limits").splitlines() if line.startswith("Max data size")
    )
    assert line.split()[3] == str(1 << 30)
    assert said(guest, "cat", f"/proc/{pid}/stat").rpartition(")")[2].split()[16] == "5"
    said(guest, QUICK, "clone", "destroy", "limited")
    assert units(guest) == ""


def test_a_clone_outlives_the_service_that_made_it(guest: Guest) -> None:
    for manager in ("detached", "systemd"):
        config = configured(guest, manager, f'manager = "{manager}"')
        words = ["zsnapdb", "clone", "create", "main", "--name", manager, "--config", config]
        said(
            guest,
            "systemd-run",
            "--quiet",
            f"--unit=maker-{manager}",
            "--service-type=oneshot",
            "--setenv=PATH=/opt/venv/bin:/usr/sbin:/usr/bin",
            *words,
        )
    pids = processes(guest)
    # systemd ends all processes in the control group of a service, so it ends the clone that is only detached.
    assert pids["detached"] is None
    assert pids["systemd"] is not None
    for manager in ("detached", "systemd"):
        said(guest, QUICK, "clone", "destroy", manager)


def test_a_server_that_needs_more_memory_than_its_limit_does_not_start_and_leaves_nothing(guest: Guest) -> None:
    config = configured(guest, "small", 'memory = "128MiB"')
    done = guest.run([QUICK, "clone", "create", "main", "--name", "small", "--config", config], timeout=600)
    assert done.code == 5, done.stdout + done.stderr
    assert "ended" in done.stderr
    assert processes(guest) == {}
    assert units(guest) == ""


def test_a_unit_has_the_walls_of_systemd_around_the_sandbox(guest: Guest) -> None:
    """IPAddressDeny is asked for; the lab's kernel has no BPF for control groups, so seccomp alone refuses there."""
    clone = json.loads(said(guest, "zsnapdb", "clone", "create", "main", "--name", "walled", "--json"))["clone"]
    unit = said(guest, "cat", f"/proc/{clone['pid']}/cgroup").rpartition("/")[2]
    names = "ProtectSystem,PrivateTmp,NoNewPrivileges,ReadWritePaths,IPAddressDeny"
    shown = dict(line.split("=", 1) for line in said(guest, "systemctl", "show", f"-p{names}", unit).splitlines())
    assert (shown["ProtectSystem"], shown["PrivateTmp"], shown["NoNewPrivileges"]) == ("strict", "yes", "yes")
    assert shown["ReadWritePaths"].split() == [clone["mount"], f"{clone['mount']}/data"]
    # systemd names them in any order.
    assert set(shown["IPAddressDeny"].split()) == {"::/0", "0.0.0.0/0"}
    status = said(guest, "cat", f"/proc/{clone['pid']}/status")
    assert "CapBnd:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status
    assert "Seccomp:\t2" in status
    mounts = said(guest, "cat", f"/proc/{clone['pid']}/mountinfo")
    assert clone["mount"] in mounts
    assert "tank/mysql " not in mounts, "production is not mounted there"
    said(guest, "zsnapdb", "clone", "destroy", "walled")


UNIT = "/run/systemd/system/lab-database.service"
DAEMON = "/usr/sbin/mariadbd --defaults-file=/etc/lab.cnf"
ZONES = (
    ("Asia/Kathmandu", f"EnvironmentFile=/run/zone\nExecStart={DAEMON}", ""),
    (
        "Pacific/Apia",
        "Type=simple\nExecStart=/usr/bin/mariadbd-safe --defaults-file=/etc/lab.cnf",
        "[mariadbd-safe]\ntimezone=Pacific/Apia",
    ),
    (
        "America/Caracas",
        f"Environment=TZ=America/Caracas\nExecStart={DAEMON}",
        "[mariadbd]\ndefault_time_zone=-03:30",
    ),
)
"""A zone, lines of a unit that give it to the server, and lines of the option file."""
LOCAL = "SELECT @@GLOBAL.time_zone, @@system_time_zone, FROM_UNIXTIME(1768516200), FROM_UNIXTIME(1784154600)"


@contextlib.contextmanager
def server_in_unit(guest: Guest, lines: str, options: str) -> Iterator[None]:
    """Run the server of the guest by a unit of systemd, with more lines of the unit and of the option file."""
    unit = f"[Service]\nUser=mysql\nType=notify\nTimeoutStartSec=300\n{lines}\n"
    said(guest, "sh", "-ec", f"printf '{unit}' > /run/systemd/system/lab-database.service")
    said(guest, "sh", "-ec", f"cp /etc/lab.cnf /run/kept.cnf; printf '\n{options}\n' >> /etc/lab.cnf")
    said(guest, "sh", "-ec", "echo TZ=Asia/Kathmandu > /run/zone; systemctl daemon-reload")
    said(guest, "/checkout/tests/lab/inside/server", "stop")
    try:
        said(guest, "systemctl", "start", "lab-database")
        said(guest, "sh", "-c", "until mariadb -e 'SELECT 1'; do sleep 0.2; done")
        yield
    finally:
        said(guest, "systemctl", "stop", "lab-database")
        said(guest, "sh", "-ec", "rm /run/systemd/system/lab-database.service; systemctl daemon-reload")
        said(guest, "sh", "-ec", "mv /run/kept.cnf /etc/lab.cnf; /checkout/tests/lab/inside/server start")


OPTIONS = "/etc/mysql/mariadb.conf.d"


def test_setup_turns_on_the_binlogs_of_a_server_that_writes_none(guest: Guest) -> None:
    setup = ["zsnapdb", "setup", "file:///srv/s3/points", "--config", "/etc/points/zsnapdb.toml", "--plain", "--yes"]
    guest.run(["mkdir", "-p", "/srv/s3/points", OPTIONS]).check()
    value = "SELECT @@log_bin, @@binlog_row_metadata, @@binlog_expire_logs_seconds"
    with server_in_unit(guest, f"ExecStart={DAEMON} $MORE\nEnvironment=MORE=--skip-log-bin", f"!includedir {OPTIONS}"):
        planned = guest.run([*setup, "--plan"]).check().stdout
        assert "--binlogs turns them on, with one restart" in planned
        refused = guest.run([*setup, "--binlogs"], timeout=600)
        assert (refused.code, "another option turns them off" in refused.stderr) == (5, True), refused.stderr
        said(guest, "sh", "-ec", f"sed -i /MORE=/d {UNIT}; systemctl daemon-reload; systemctl restart lab-database")
        assert said(guest, "mariadb", "-NBe", value).split() == ["1", "FULL", "604800"]
        said(guest, "sh", "-ec", f"rm {OPTIONS}/*; sed -i /^log_bin/d /etc/lab.cnf; systemctl restart lab-database")
        assert said(guest, "mariadb", "-NBe", value).split()[0] == "0"
        guest.run([*setup, "--binlogs", "--no-proof"], timeout=600).check()
        assert said(guest, "mariadb", "-NBe", value).split() == ["1", "FULL", "604800"]
        written = said(guest, "cat", "/etc/points/zsnapdb.toml")
        assert {'rpo = "15m"', 'unit = "lab-database.service"', "archive = true"} <= set(written.splitlines())
        guest.run(
            ["zsnapdb", "setup", "--remove", "--config", "/etc/points/zsnapdb.toml", "--yes"], timeout=600
        ).check()


@pytest.mark.parametrize(("zone", "lines", "options"), ZONES)
def test_copy_has_the_zone_that_the_unit_of_its_source_sets(guest: Guest, zone: str, lines: str, options: str) -> None:
    with server_in_unit(guest, lines, options):
        backup = json.loads(said(guest, QUICK, "backup", "--json"))["backup"]["backup_id"]
        words = (QUICK, "clone", "create", "main", "--name", "there", "--from", backup, "--json")
        pid = json.loads(said(guest, *words))["clone"]["pid"]
        given = said(guest, "sh", "-c", f"tr '\\0' '\\n' < /proc/{pid}/environ")
        assert [line for line in given.splitlines() if line.startswith("TZ=")] == [f"TZ={zone}"]
        assert said(guest, QUICK, "clone", "connect", "there", "-N", "-B", "-e", LOCAL) == said(
            guest, "mariadb", "-N", "-B", "-e", LOCAL
        )
        said(guest, QUICK, "clone", "destroy", "there")
        if "safe" in lines:  # systemd's main process is not the server
            return
        said(guest, "systemctl", "stop", "lab-database")
        # No setting says how the server is started, and it is not there to be asked: the backup recorded it.
        more = '[instance.main.control]\nserver_id_file = "/etc/mysql/z.cnf"\n'
        said(guest, "sh", "-ec", f"(cat /etc/zsnapdb/zsnapdb.toml; printf '\n{more}') > /run/bare.toml")
        status = guest.run((QUICK, "status", "main")).stdout
        assert "systemctl start lab-database.service" in status
        planned = guest.run((QUICK, "rewind", "main", "--to", "latest", "--plan", "--config", "/run/bare.toml"))
        assert (planned.code, "lab-database.service" in planned.stdout) == (0, True), planned.stderr


def test_every_shipped_unit_does_its_job_within_its_walls(guest: Guest) -> None:
    said(guest, "sh", "-ec", "cp /checkout/configs/systemd/* /run/systemd/system/; systemctl daemon-reload")
    said(guest, "mkdir", "-p", "/var/lib/prometheus/node-exporter")
    more = '[instance.main.keep]\\nlast = 7\\n[instance.main.agent]\\nbackup = { every = "1h" }\\n'
    more += '[repository.offsite]\\nurl = "file:///srv/s3/offsite"\\n'
    keep = f"cp {CONFIG} /run/kept.toml; printf '{more}' >> {CONFIG}"
    said(guest, "sh", "-ec", keep)
    said(guest, "mkdir", "/srv/s3/offsite")
    verifies = ("verify@main", "deep-verify@main")
    for job in ("backup@main", "full@main", "snapshot@main", *verifies, "drill@main", "prune@main", *LAST):
        unit = f"zsnapdb-{job}.service"
        started = guest.run(["systemctl", "start", unit], timeout=600)
        assert started.code == 0, said(guest, "journalctl", "--no-pager", "-n", "30", "-u", unit)
    metrics = said(guest, "cat", "/var/lib/prometheus/node-exporter/zsnapdb.prom").splitlines()
    (passed,) = [line for line in metrics if line.startswith("zsnapdb_drill_newest_passed{")]
    assert passed.endswith(" 1"), "status has read the drill"
    for job in ("agent", "binlog@main"):
        said(guest, "systemctl", "start", f"zsnapdb-{job}")
        assert said(guest, "systemctl", "is-active", f"zsnapdb-{job}") == "active"
        said(guest, "systemctl", "stop", f"zsnapdb-{job}")
    said(guest, "systemctl", "start", "zsnapdb-purge@main")
    check_a_failed_unit_is_told(guest)
    back = f"rm /run/systemd/system/zsnapdb-*; systemctl daemon-reload; cp /run/kept.toml {CONFIG}"
    said(guest, "sh", "-ec", back)


def check_a_failed_unit_is_told(guest: Guest) -> None:
    """Check that what a unit names under OnFailure= and ExecStopPost= reaches a target from within its walls."""
    script = "#!/bin/sh\ncat >> /var/lib/zsnapdb/told\necho >> /var/lib/zsnapdb/told\n"
    said(guest, "sh", "-ec", f"printf '{script}' > /run/tell; chmod +x /run/tell")
    said(guest, "sh", "-ec", f"""printf '[notifications.to.script]\nscript = ["/bin/sh", "/run/tell"]\n' >> {CONFIG}""")
    assert guest.run(["systemctl", "start", "zsnapdb-verify@nobody"], timeout=600).code != 0
    said(guest, "systemctl", "start", "zsnapdb-binlog@nobody")
    both = " && ".join(f"grep -q {job}@nobody /var/lib/zsnapdb/told" for job in ("verify", "binlog"))
    known = f"until {both}; do sleep 0.1; done"
    said(guest, "sh", "-c", known)
    said(guest, "systemctl", "stop", "zsnapdb-binlog@nobody")
    told = [json.loads(line) for line in said(guest, "cat", "/var/lib/zsnapdb/told").splitlines()]
    ends = {(one["subject"], one["instance"], one["exit_code"], one["text"]) for one in told}
    assert ends == {
        ("verify", "nobody", 2, "unit zsnapdb-verify@nobody failed: exit-code 2"),
        ("binlog", "nobody", 2, "unit zsnapdb-binlog@nobody failed: exit-code 2"),
    }


ASKS_BY_HTTP = """
import json, sys, urllib.error, urllib.request
method, path, token, *body = sys.argv[1:]
request = urllib.request.Request("http://127.0.0.1:9808/api/v1" + path, method=method)
request.add_header("Authorization", "Bearer " + token)
if body:
    request.data = body[0].encode()
    request.add_header("Content-Type", "application/json")
try:
    answer = urllib.request.urlopen(request, timeout=300)
except urllib.error.HTTPError as refused:
    answer = refused
print(json.dumps({"status": answer.status, "body": json.load(answer)}))
"""


def asked(guest: Guest, token: str, method: str, path: str, *body: str) -> dict[str, Any]:
    """Return the answer to a request of the API, after the end of the operation if it is one."""
    answer: dict[str, Any] = json.loads(said(guest, "python3", "-c", ASKS_BY_HTTP, method, path, token, *body))
    while answer["status"] == 202:
        where = f"/operations/{answer['body']['operation']}"
        answer = json.loads(said(guest, "python3", "-c", ASKS_BY_HTTP, "GET", where, token))
    return answer


def test_clones_by_http_work_within_the_walls_of_the_units_and_outlive_them(guest: Guest) -> None:
    said(
        guest, "useradd", "--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", "zsnapdb-web"
    )
    said(
        guest, "sh", "-ec", "cp /checkout/configs/systemd/zsnapdb-serve* /run/systemd/system/; systemctl daemon-reload"
    )
    said(guest, "systemctl", "start", "zsnapdb-serve-helper.socket", "zsnapdb-serve")
    listens = "import socket; socket.create_connection(('127.0.0.1', 9808))"
    said(guest, "sh", "-c", f'until python3 -c "{listens}" 2>/dev/null; do sleep 0.2; done')
    token = json.loads(said(guest, QUICK, "token", "create", "--for", "ci:shop/web", "--role", "operator", "--json"))[
        "text"
    ]
    made = asked(guest, token, "POST", "/clones", '{"instance": "main", "name": "team"}')
    assert made["status"] in (200, 201), said(guest, "journalctl", "--no-pager", "-n", "50", "-u", "zsnapdb-serve*")
    web = said(guest, "systemctl", "show", "--value", "-pMainPID", "zsnapdb-serve")
    status = said(guest, "cat", f"/proc/{web}/status")
    assert {"CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"} <= set(status.splitlines())
    assert said(guest, "stat", "-c", "%U", f"/proc/{web}") == "zsnapdb-web"
    # Root sees there what the process sees.
    for hidden in (CONFIG, "/var/lib/zsnapdb/serve/tokens.json", "/run/mysqld/mysqld.sock"):
        said(guest, "test", "-e", hidden)
        assert guest.run(["test", "-e", f"/proc/{web}/root{hidden}"]).code == 1, hidden
    assert guest.run(["test", "-e", f"/proc/{web}/root/run/zsnapdb-serve/helper.sock"]).code == 0
    helper = said(guest, "systemctl", "show", "--value", "-pMainPID", "zsnapdb-serve-helper")
    said(guest, "kill", "-9", helper)
    # systemd starts another, and holds the socket meanwhile.
    (kept,) = asked(guest, token, "GET", "/clones")["body"]["clones"]
    assert (kept["name"], kept["owner"], kept["pid"]) == ("team", "ci:shop/web", made["body"]["clone"]["pid"])
    assert asked(guest, token, "DELETE", "/clones/team")["status"] == 200
    said(guest, "systemctl", "stop", "zsnapdb-serve", "zsnapdb-serve-helper.socket", "zsnapdb-serve-helper")
    assert said(guest, "systemctl", "show", "--value", "-pResult", "zsnapdb-serve-helper") == "success"
    assert processes(guest) == {}
    said(guest, "sh", "-ec", "rm /run/systemd/system/zsnapdb-serve*; systemctl daemon-reload; userdel zsnapdb-web")


def test_setup_that_went_wrong_in_five_ways_is_put_right_by_its_hints_and_one_agent_runs_all_jobs(guest: Guest) -> None:
    own = "/etc/set-up/zsnapdb.toml"
    first = ["zsnapdb", "setup", "file:///srv/s3/set-up", "--config", own, "--plain", "--yes", "--notify", "/srv/tell"]
    second = [*first[:-2], "--instance", "shop", "--no-proof"]
    guest.run(["mkdir", "/srv/s3/other"]).check()
    guest.run(["install", "-m", "755", "/bin/false", "/srv/tell"]).check()

    def refused(words: list[str], why: str, ends: int) -> None:
        ended = guest.run(words, timeout=600)
        assert (ended.code, why in ended.stderr) == (ends, True), ended.stderr

    refused(first, "the folder /srv/s3/set-up of the repository is not there: make it", 4)
    guest.run(["mkdir", "/srv/s3/set-up"]).check()
    refused([*first, "--socket", "/run/wrong.sock"], "no running server listens on /run/wrong.sock", 4)
    refused(first, "the test message did not reach /srv/tell, and nothing was changed", 9)
    guest.run(["install", "-m", "755", "/bin/true", "/srv/tell"]).check()
    guest.run([*first[:2], "file:///srv/s3/other", *first[3:], "--no-proof"], timeout=600).check()
    refused(first, "and the answers say file:///srv/s3/set-up", 4)
    guest.run(["zsnapdb", "setup", "--remove", "--config", own, "--yes"], timeout=600).check()
    # The second time everything is there: its proof would be that of the first.
    for more in ([], ["--no-proof"]):
        guest.run([*first, *more], timeout=600).check()
        shown = said(guest, "systemctl", "show", "-pActiveState,UnitFileState,ExecStart", "zsnapdb-agent")
        assert {"ActiveState=active", "UnitFileState=enabled"} <= set(shown.splitlines())
        assert f"-m zsnapdb agent --config {own}" in shown
    assert "/srv/s3/other" not in said(guest, "cat", own)
    refused([*second, "--config", "/etc/shop.toml"], f"--config {own}", 4)
    guest.run(second, timeout=600).check()
    status = said(guest, "zsnapdb", "agent", "status", "--config", own, "--json")
    jobs = {(job["job"], job["instance"]) for job in json.loads(status)["jobs"]}
    each = {(job, name) for job in ("archive", "backup", "drill", "doctor") for name in ("main", "shop")}
    assert jobs >= each | {("reap", None), ("status", None)}
    given_up = ["zsnapdb", "setup", "--remove", "--config", own, "--instance"]
    guest.run([*given_up, "shop", "--yes"], timeout=600).check()
    status = said(guest, "zsnapdb", "agent", "status", "--config", own, "--json")
    assert {job["instance"] for job in json.loads(status)["jobs"]} == {"main", None}
    stopped = guest.run([*given_up, "main", "--yes"], timeout=600).check().stdout
    ended = said(guest, "systemctl", "show", "-pActiveState,LoadState", "zsnapdb-agent")
    assert set(ended.split()) == {"ActiveState=inactive", "LoadState=not-found"}
    (listing,) = [line.strip() for line in stopped.splitlines() if line.rstrip().endswith("'[@#]zsnapdb-'")][:1]
    assert said(guest, "sh", "-c", listing), "its snapshots are there, and the printed command names them"
