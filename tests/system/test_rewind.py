"""A rewind in place: the server stands at the point, the replaced datasets are kept, nothing is fetched."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.lab.inside import ledger
from zsnapdb.planning.agent_jobs import HOST, JobKind, JobName

from .agents import Agent, good_since
from .in_guest import SERVER, Lab, clock_ahead, connect, zfs
from .rewinding import INCLUDED, accident, controlled, gtid_of, lines, state

pytestmark = pytest.mark.usefixtures("first")

AWAY = ('endpoint = "http://127.0.0.1:7070"', 'endpoint = "http://127.0.0.1:7"')
"""Nobody listens at that port."""


@pytest.fixture
def control(lab: Lab) -> Iterator[tuple[tuple[str, str], ...]]:
    """Say how the guest's server is stopped and started. Afterwards the first server is in its place again."""
    with controlled(lab) as replacements:
        yield replacements


SITE_PROPERTIES = {
    "tank/mysql": {"quota": "8G", "reservation": "64M", "com.sun:auto-snapshot": "true", "autobackup:offsite": "a=>b"},
    "tank/mysql/data": {
        "refquota": "7G",
        "secondarycache": "none",
        "snapdir": "visible",
        "org.znapzend:plan": "x\tlocal",
    },
}
"""What a site sets on its production, and other programs select it by."""
SITE_RIGHTS = (("-s", "@keepers", "hold,send"), ("-c", "mount"), ("-l", "-u", "daemon", "@keepers"), ("-e", "snapshot"))


@contextlib.contextmanager
def set_by_the_site() -> Iterator[list[str]]:
    """Set the properties and rights of a site on production, and yield all that holds there, as `zfs` prints it."""
    for dataset, values in SITE_PROPERTIES.items():
        zfs("set", *(f"{name}={value}" for name, value in values.items()), dataset)
    for words in SITE_RIGHTS:
        zfs("allow", *words, "tank/mysql")
    try:
        yield held_by_the_site()
    finally:
        for dataset, values in SITE_PROPERTIES.items():
            limits = [name for name in values if name in ("quota", "reservation", "refquota")]
            zfs("set", *(f"{name}=none" for name in limits), dataset)
            for name in set(values).difference(limits):
                zfs("inherit", name, dataset)
        for words in SITE_RIGHTS:
            zfs("unallow", *words, "tank/mysql")


def held_by_the_site() -> list[str]:
    """Return every value that somebody set on production, with its source, and every right there."""
    columns = ("get", "-H", "-p", "-o", "name,property,value,source", "-s", "local,received,inherited,default", "all")
    rows = [row for row in zfs(*columns, *SITE_PROPERTIES) if "\tzsnapdb:" not in row]
    return [*sorted(rows), *zfs("allow", "tank/mysql")]


def server_id(lab: Lab) -> int:
    return int(lab.sql("SELECT @@server_id")[0][0])


def test_a_rewind_undoes_an_accident_in_place_with_what_is_on_the_host_and_keeps_what_came_after(
    lab: Lab, load_running: ledger.Load, control: tuple[tuple[str, str], ...]
) -> None:
    away = lab.changed(*control, AWAY)
    zfs("snapshot", "-r", "tank/mysql@foreign_before")
    zfs("clone", "-o", "canmount=off", "tank/mysql/data@foreign_before", "tank/foreign")
    assert lab.zsnapdb("snapshot").code == 0
    zfs("snapshot", "-r", "tank/mysql@foreign_after")
    load_running.wait_for(20)
    load_running.stop()
    expected, point = accident(lab)
    taken_back = lab.zsnapdb("backup", "--json").json["backup"]["backup_id"]
    further, old_id = f"before-{gtid_of(lab, 'insert')}", server_id(lab)
    planned = lab.zsnapdb("rewind", "main", "--to", point, "--plan", "--json", config=away).json
    assert (planned["volumes_from"], planned["binlogs_from"]["archive"]) == ("host", 0)
    assert (planned["left_out"]["transactions"], planned["left_out"]["unknown"]) == (2, [])
    refused = lab.zsnapdb("rewind", "main", "--to", point, "--json", config=away)
    assert (refused.code, "add --yes" in refused.stderr) == (2, True)
    with set_by_the_site() as held:
        done = lab.zsnapdb("rewind", "main", "--to", point, "--yes", "--no-backup", "--json", config=away).json
        assert held_by_the_site() == held
    assert done["finished"]
    assert (done["left_out"], done["archived"]["history"]) == (planned["left_out"], None)
    assert done["archived"]["missing"]
    assert (state(), lines(lab)) == (expected, [1, 2, 3])
    assert not lab.sql("SHOW TABLES FROM rewound LIKE 'after_it'")
    assert (server_id(lab) == old_id) == (lab.flavour == "mysql")
    assert zfs("list", "-H", "-o", "mounted", *done["replaced"].values()) == ["no", "no"]
    check_that_latest_is_of_the_history_that_production_has(lab, taken_back, done["restore_id"])
    check_that_what_others_made_is_still_there(done)
    check_that_later_writes_can_be_salvaged(lab, done)
    check_that_replaced_datasets_go_when_they_are_told_to(lab, done)
    # Further back, with what the rewound server wrote since: from the same set, and its own binlogs.
    lab.sql("INSERT INTO rewound.lines VALUES (4)")
    again = lab.zsnapdb("rewind", "main", "--to", further, "--yes", "--no-backup", "--json", config=away).json
    assert again["volumes_from"] == "host"
    assert (state(), lines(lab)) == (expected, [])


def check_that_latest_is_of_the_history_that_production_has(lab: Lab, taken_back: str, restore_id: str) -> None:
    """The backup of what was taken back is the newest in the repository, and found by its id alone."""
    words = ("restore", "main", "--target", "tank/latest", "--plan", "--json", "--to")
    planned = lab.zsnapdb(*words, "latest-backup").json
    assert planned["backup_id"] != taken_back
    assert any(taken_back in note and restore_id in note for note in planned["point"]["notes"])
    assert lab.zsnapdb(*words, taken_back).json["backup_id"] == taken_back
    drilled = lab.zsnapdb("drill", "main", "--to", "latest-backup", "--plan", "--json").json
    assert drilled["backup_id"] != taken_back


def check_that_what_others_made_is_still_there(done: dict[str, Any]) -> None:
    """Snapshots before the point are now of the restored datasets, later ones of the replaced; clones stay clones."""
    assert zfs("get", "-H", "-o", "value", "origin", "tank/foreign") == ["tank/mysql/data@foreign_before"]
    for dataset in ("tank/mysql", "tank/mysql/data"):
        zfs("list", "-H", f"{dataset}@foreign_before")
    for dataset in done["replaced"].values():
        zfs("list", "-H", f"{dataset}@foreign_after")
    zfs("destroy", "tank/foreign")


def check_that_later_writes_can_be_salvaged(lab: Lab, done: dict[str, Any]) -> None:
    """A clone of the replaced datasets has what was written after the point."""
    made = lab.zsnapdb("clone", "create", "main", "--from", done["restore_id"], "--name", "later", "--json").json
    try:
        with connect(made) as here, here.cursor() as cursor:
            cursor.execute("SELECT COUNT(*) FROM rewound.lines")
            assert cursor.fetchone() == (0,)
            assert cursor.execute("SHOW TABLES FROM rewound LIKE 'after_it'") == 1
    finally:
        assert lab.zsnapdb("clone", "destroy", "later").code == 0


def check_that_replaced_datasets_go_when_they_are_told_to(lab: Lab, done: dict[str, Any]) -> None:
    (diagnosis,) = json.loads(lab.zsnapdb("doctor", "main", "--json").stdout)["instances"]
    (named,) = [finding for finding in diagnosis["findings"] if finding["what"] == "replaced"]
    assert (named["severity"], done["replaced"]["data"] in named["detail"]) == ("ok", True), named
    (kept,) = [line for line in lab.zsnapdb("reap", "--plan").stdout.splitlines() if done["restore_id"] in line]
    assert "keep_replaced is not set" in kept
    told = lab.changed(("[repository.s3]", '[restore]\nkeep_replaced = "30d"\n\n[repository.s3]'))
    assert lab.zsnapdb("reap", config=told).code == 0
    with clock_ahead(40 * 86_400):
        swept = lab.zsnapdb("reap", config=told)
    assert (swept.code, "40 d ahead of its steady clock" in swept.stdout) == (0, True), swept.stdout
    assert len(zfs("list", "-H", "-o", "name", *done["replaced"].values())) == 2


KILLER = """#!/bin/sh
# Kills the command that starts it before its Nth change of a dataset; N is in the file kill-at beside it.
case "$1" in
  set|inherit|rename|promote|clone|snapshot|mount|unmount|destroy|rollback)
    n=$(($(cat "${0%/*}/kill-at") - 1))
    echo $n > "${0%/*}/kill-at"
    [ $n -ne 0 ] || kill -9 $PPID ;;
esac
exec /usr/sbin/zfs "$@"
"""


def check_that_a_full_pool_changes_nothing(lab: Lab, config: Path, point: str) -> None:
    """A rewind without space is refused. The server goes on, and nothing is left when the rewind is given up."""
    (used,) = zfs("get", "-H", "-p", "-o", "value", "used", "tank/zsnapdb")
    zfs("set", f"quota={int(used) + (1 << 20)}", "tank/zsnapdb")
    try:
        full = lab.zsnapdb("rewind", "main", "--to", point, "--yes", "--no-backup", config=config)
    finally:
        zfs("set", "quota=none", "tank/zsnapdb")
    assert full.code not in (0, 1), full.stderr
    assert lines(lab) == []
    lab.zsnapdb("restore", "main", "--abandon")
    assert not [name for name in zfs("list", "-H", "-o", "name") if "main-rewind" in name]


DESTROYER = """#!/bin/sh
# Destroys the snapshot of the volume `data` when that of the other volume is cloned.
if [ "$1" = clone ]; then
  for word; do
    case "$word" in tank/mysql@*) /usr/sbin/zfs destroy "tank/mysql/data@${word#*@}" ;; esac
  done
fi
exec /usr/sbin/zfs "$@"
"""


def check_that_a_snapshot_which_goes_meanwhile_changes_nothing(
    lab: Lab, config: Path, point: str, tmp_path: Path
) -> None:
    """The chosen set loses a snapshot after the plan, when the other volume is cloned already."""
    words = ("rewind", "main", "--to", point, "--yes", "--no-backup")
    chosen = lab.zsnapdb(*words[:-2], "--plan", "--json", config=config).json["backup_id"]
    program = tmp_path / "destroyer" / "zfs"
    program.parent.mkdir()
    program.write_text(DESTROYER)
    program.chmod(0o755)
    environment = {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    gone = lab.zsnapdb(*words, config=config, environment=environment)
    snapshot = f"tank/mysql/data@zsnapdb-{chosen}"
    assert (gone.code, f"the snapshot {snapshot} was destroyed after" in gone.stderr) == (4, True), gone.stderr
    assert lines(lab) == []
    assert not [name for name in zfs("list", "-H", "-o", "name") if "main-rewind" in name]
    assert lab.zsnapdb(*words[:-2], "--plan", "--json", config=config).json["backup_id"] != chosen


# What is interrupted is changes of datasets. Which server starts on them makes no difference.
@pytest.mark.any_server
def test_a_rewind_that_fails_and_is_killed_again_and_again_ends_at_the_point(
    lab: Lab, load_running: ledger.Load, control: tuple[tuple[str, str], ...], tmp_path: Path
) -> None:
    assert lab.zsnapdb("snapshot").code == 0
    load_running.wait_for(10)
    assert lab.zsnapdb("snapshot").code == 0
    load_running.stop()
    expected, point = accident(lab)
    ((text, section),) = control
    unable = lab.changed((text, section.replace(f'stop = ["{SERVER}", "stop"]', 'stop = ["false"]')))
    failed = lab.zsnapdb("rewind", "main", "--to", point, "--yes", "--no-backup", config=unable)
    assert (failed.code, "the old server runs, and nothing was replaced" in failed.stderr) == (5, True), failed.stderr
    assert lines(lab) == []
    assert lab.zsnapdb("restore", "main", "--abandon").code == 0
    check_that_a_full_pool_changes_nothing(lab, lab.changed(*control), point)
    check_that_a_snapshot_which_goes_meanwhile_changes_nothing(lab, lab.changed(*control), point, tmp_path)

    config, counter, program = lab.changed(*control), tmp_path / "kill-at", tmp_path / "zfs"
    program.write_text(KILLER)
    program.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    words, kills = ["rewind", "main", "--to", point, "--yes", "--no-backup", "--json"], 0
    while True:
        counter.write_text(f"{4 + 4 * kills}\n")
        done = lab.zsnapdb(*words, config=config, environment=environment)
        if done.code != -9:
            break
        kills += 1
        words = ["rewind", "main", "--resume", "--yes", "--no-backup", "--json"]
    assert done.json["finished"]
    assert kills >= 3
    assert (state(), lines(lab)) == (expected, [1, 2, 3])


# The options of both families are tested with the texts of their programs.
@pytest.mark.any_server
def test_rewind_of_a_server_that_cannot_start_names_the_cause(lab: Lab, control: tuple[tuple[str, str], ...]) -> None:
    assert lab.zsnapdb("snapshot").code == 0
    expected, point = accident(lab)
    guids = zfs("get", "-H", "-o", "value", "guid", "tank/mysql", "tank/mysql/data")
    ((text, section),) = control
    config, words = lab.changed(*control), ("rewind", "main", "--to", point, "--yes", "--no-backup")
    typo = INCLUDED / "typo.cnf"
    typo.write_text("[mysqld]\nsync_binlgo = 1\n")
    assert "unknown variable 'sync_binlgo'" in lab.zsnapdb(*words[:-2], "--plan", config=config).stdout
    refused = lab.zsnapdb(*words, config=config)
    assert (refused.code, "unknown variable 'sync_binlgo'" in refused.stderr) == (4, True), refused.stderr
    assert not [name for name in zfs("list", "-H", "-o", "name") if "main-rewind" in name]
    typo.unlink()
    unable = lab.changed((text, section.replace(f'stop = ["{SERVER}", "stop"]', 'stop = ["false"]')))
    assert lab.zsnapdb(*words, config=unable).code == 5
    typo.write_text("[mysqld]\nsync_binlgo = 1\n")
    late = lab.zsnapdb("rewind", "main", "--resume", "--yes", "--no-backup", config=config)
    assert (late.code, "the old server runs, and nothing was replaced" in late.stderr) == (4, True), late.stderr
    assert zfs("get", "-H", "-o", "value", "guid", "tank/mysql", "tank/mysql/data") == guids
    typo.unlink()

    unable = lab.changed((text, section.replace(f'start = ["{SERVER}", "start"]', 'start = ["false"]')))
    resumed = ("rewind", "main", "--resume", "--yes", "--no-backup")
    failed = lab.zsnapdb(*resumed, config=unable)
    assert "the restored datasets are in place, and the server is stopped" in failed.stderr, failed.stderr
    shown = [lab.zsnapdb(command, "main", config=config).stdout for command in ("status", "doctor")]
    assert all("correct the cause of the error first, then `zsnapdb rewind main --resume`" in one for one in shown)
    given_up = "--abandon --target tank/zsnapdb/restored/main-rewind"
    assert not any(given_up in one for one in (*shown, failed.stderr)), (shown, failed.stderr)
    assert lab.zsnapdb(*resumed, config=config).code == 0
    assert (state(), lines(lab)) == (expected, [1, 2, 3])


KILL_BEHIND = """#!/bin/sh
# Kills the command that starts it behind the first change of the kind in the file kill-behind beside it.
/usr/sbin/zfs "$@"
code=$?
if [ "$1" = "$(cat "${0%/*}/kill-behind")" ]; then
  echo done > "${0%/*}/kill-behind"
  kill -9 $PPID
fi
exit $code
"""


def seconds(keep: str) -> tuple[str, str]:
    """Return the change of the configuration that says how long replaced datasets are kept."""
    return ("[repository.s3]", f'[restore]\nkeep_replaced = "{keep}"\n\n[repository.s3]')


# What is killed is changes of datasets. Which server starts on them makes no difference.
@pytest.mark.any_server
def test_a_rewind_that_is_killed_in_its_exchange_loses_nothing_whatever_is_done_next(
    lab: Lab, control: tuple[tuple[str, str], ...], tmp_path: Path
) -> None:
    assert lab.zsnapdb("snapshot").code == 0
    _, point = accident(lab)
    old_id, guids = server_id(lab), zfs("get", "-H", "-o", "value", "guid", "tank/mysql", "tank/mysql/data")
    config, counter, program = lab.changed(*control, seconds("1s")), tmp_path / "kill-behind", tmp_path / "zfs"
    program.write_text(KILL_BEHIND)
    program.chmod(0o755)
    counter.write_text("rename\n")
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    words = ("rewind", "main", "--to", point, "--yes", "--no-backup")
    assert lab.zsnapdb(*words, config=config, environment=environment).code == -9
    # Nothing runs, and nothing is in its place. Everything says so, and nothing goes.
    status = lab.zsnapdb("status", "main", config=config)
    assert status.code == 2
    onward, back = "`zsnapdb rewind main --resume`", "`zsnapdb restore main --abandon --target tank/zsnapdb/restored/"
    assert (onward in status.stdout, back in status.stdout) == (True, True), status.stdout
    assert onward in lab.zsnapdb("doctor", "main", config=config).stdout
    assert lab.zsnapdb("reap", config=config).code == 0
    with waiting_agent(lab, control, tmp_path / "agent") as agent:
        abandoned = lab.zsnapdb("restore", "main", "--abandon", config=config)
        check_that_the_agent_goes_on(agent)
    assert (abandoned.code, "started again and answers" in abandoned.stdout) == (0, True), abandoned.stderr
    assert zfs("get", "-H", "-o", "value", "guid", "tank/mysql", "tank/mysql/data") == guids
    assert (lines(lab), server_id(lab), list(INCLUDED.iterdir())) == ([], old_id, [])
    assert lab.sql("SHOW TABLES FROM rewound LIKE 'after_it'")
    assert not [name for name in zfs("list", "-H", "-o", "name") if "main-rewind" in name or "-replaced-" in name]
    check_that_what_is_no_volume_refuses_before_anything(lab, config, words)
    check_that_an_interrupted_exchange_ends(lab, control, words, tmp_path)
    check_that_what_was_replaced_goes_only_while_nobody_wrote_to_it(lab, config)


STATUS, VERIFY = JobName(HOST, JobKind.STATUS), JobName("main", JobKind.VERIFY)
AGENT = """
[instance.main.agent]
archive = true
verify = {{ every = "10s" }}
[notifications]
state = "{folder}/told"
[notifications.to.pager]
script = ["{folder}/pager"]
"""


def pages(agent: Agent) -> list[tuple[str, str]]:
    """Return what was told: the subjects and the events."""
    told = (json.loads(line) for line in (agent.folder / "pages").read_text().splitlines())
    return [(page["subject"], page["event"]) for page in told]


@contextlib.contextmanager
def waiting_agent(lab: Lab, control: tuple[tuple[str, str], ...], folder: Path) -> Iterator[Agent]:
    """Start an agent while the server is down because of the interrupted rewind: it begins nothing, and tells once."""
    folder.mkdir()
    pager = folder / "pager"
    pager.write_text(f"#!/bin/sh\ncat >> {folder}/pages\necho >> {folder}/pages\n")
    pager.chmod(0o755)
    agent = Agent(lab, folder, *control)
    agent.configure(AGENT.format(folder=folder), 'status = { every = "10s" }')
    agent.start()
    try:
        # Its record has no exit code while a run is under way, and the next one may follow at once.
        agent.until(lambda: agent.said.read_text().count("status ended with 2") >= 2)
        (held,) = lab.zsnapdb("agent", "status", "--json", config=agent.config).json["held"]
        assert (held["instance"], "`zsnapdb rewind main --resume` continues it" in held["reason"]) == ("main", True), (
            held
        )
        assert [agent.records.run(JobName("main", kind)) for kind in (JobKind.VERIFY, JobKind.ARCHIVE)] == [None, None]
        assert pages(agent) == [("server", "broken")]
        yield agent
    finally:
        agent.end()


def check_that_the_agent_goes_on(agent: Agent) -> None:
    began = datetime.now(UTC)
    agent.until(good_since(agent, VERIFY, began))
    agent.until(lambda: agent.children("archive"))
    agent.until(lambda: pages(agent) == [("server", "broken"), ("server", "met")])


def check_that_what_is_no_volume_refuses_before_anything(lab: Lab, config: Path, words: tuple[str, ...]) -> None:
    """A dataset below the server's own would go along with the rename, and its next writes to another disk."""
    zfs("create", "-o", "mountpoint=/srv/dumps", "tank/mysql/dumps")
    zfs("create", "-o", "mountpoint=/var/lib/mysql/data/inside", "tank/inside")
    try:
        for options in (["--plan"], []):
            refused = lab.zsnapdb(*words[:-2], *options, "--yes", config=config)
            assert refused.code == 4, refused.stderr
            assert "tank/mysql/dumps (a dataset below it)" in refused.stderr
            assert "/var/lib/mysql/data/inside (a mount of tank/inside)" in refused.stderr
    finally:
        zfs("destroy", "tank/mysql/dumps")
        zfs("destroy", "tank/inside")
        Path("/var/lib/mysql/data/inside").rmdir()
    assert not [name for name in zfs("list", "-H", "-o", "name") if "main-rewind" in name]


def check_that_an_interrupted_exchange_ends(
    lab: Lab, control: tuple[tuple[str, str], ...], words: tuple[str, ...], tmp_path: Path
) -> None:
    """Ctrl-C while the server stops is obeyed once it runs again. A second --resume does nothing.

    While the command is at work, the server that is down is no alarm.

    Who stands in a folder of the server keeps it from being unmounted, so nothing is stopped. A program of another
    account that has the server's name is not taken for it.
    """
    ((text, section),) = control
    # Other accounts may not enter the folder of the test.
    looks_like_it = Path("/var/tmp/mysqld")
    looks_like_it.write_bytes(Path("/bin/sleep").read_bytes())
    looks_like_it.chmod(0o755)
    other = subprocess.Popen([looks_like_it, "600"], cwd="/var/lib/mysql/data", user="nobody")
    started = lab.sql("SHOW STATUS LIKE 'Uptime'")
    refused = lab.zsnapdb(*words, config=lab.changed(*control))
    other.kill()
    other.wait()
    assert (refused.code, f"process {other.pid} (mysqld) has its working directory there" in refused.stderr) == (
        4,
        True,
    )
    assert int(lab.sql("SHOW STATUS LIKE 'Uptime'")[0][1]) >= int(started[0][1]), "the server was not stopped"
    words = ("rewind", "main", "--resume", "--yes", "--no-backup")
    during = tmp_path / "during.json"
    ask = f"{sys.executable} -m zsnapdb status main --json > {during}"
    stop = f'["sh", "-c", "kill -INT $PPID; {SERVER} stop && {{ {ask} || true; }}"]'
    config = lab.changed((text, section.replace(f'["{SERVER}", "stop"]', stop)))
    done = lab.zsnapdb(*words, config=config)
    assert (done.code, "the server of main runs again" in done.stderr) == (130, True), done.stderr
    (judged,) = [one for one in json.loads(during.read_text())["objectives"] if one["objective"] == "server"]
    assert (judged["verdict"], judged["reason"].endswith(", and is running")) == ("warning", True), judged
    assert lines(lab) == [1, 2, 3]
    backups = lab.zsnapdb("list", "main", "--json").json["backups"]
    again = lab.zsnapdb("rewind", "main", "--resume", "--yes", "--json", config=config).json
    assert (again["finished"], bool(again["finished_before"]), again["backup"]) == (True, True, None)
    assert again["outage_seconds"] > 1
    assert lab.zsnapdb("list", "main", "--json").json["backups"] == backups


def check_that_what_was_replaced_goes_only_while_nobody_wrote_to_it(lab: Lab, config: Path) -> None:
    """The reaper would remove it, until somebody uses it."""

    def reason() -> str:
        (line,) = [
            line for line in lab.zsnapdb("reap", "--plan", config=config).stdout.splitlines() if "replaced" in line
        ]
        return line

    (old,) = [name for name in zfs("list", "-H", "-o", "name", "-d", "1", "tank") if "/mysql-replaced-" in name]
    assert "kept" not in reason()
    zfs("set", "mountpoint=/srv/old", f"{old}/data")
    zfs("mount", f"{old}/data")
    assert "is mounted" in reason()
    Path("/srv/old/new").write_bytes(b"0" * 100_000)
    zfs("unmount", f"{old}/data")
    assert "was written to since it was replaced" in reason()
    zfs("inherit", "mountpoint", f"{old}/data")
