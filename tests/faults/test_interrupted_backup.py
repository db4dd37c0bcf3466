"""A backup that ends at any moment leaves no lock and lists no incomplete backup, and the next backup works.

A backup and a restore wait for a store that cannot be reached.
"""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Iterator

import pytest

from tests.lab.guest import Guest, Lab

from .in_guest import (
    CONFIG,
    PREPARE,
    PYTHON,
    QUICK,
    STOP_COMMAND,
    backups,
    check_clean_and_working,
    speed_up,
    take_the_store_away,
    wait_for_step,
)

pytestmark = pytest.mark.any_server


def small_chunks(guest: Guest) -> None:
    """Configure chunks of 1 MiB, one after the other, four in a second.

    So the first chunks are seen in the middle of the stream, however fast the machine is.
    """
    guest.run(["sed", "-i", 's/^\\[repository.s3\\]$/&\\nbandwidth = "4MiB"/', CONFIG]).check()
    table, small = r"^\[repository.s3.stream\]$", r'chunk_size = "1MiB"\nconcurrency = 1'
    guest.run(["sh", "-c", f"grep -q '{table}' {CONFIG} || printf '\\n[repository.s3.stream]\\n' >> {CONFIG}"]).check()
    guest.run(["sed", "-i", rf"s/{table}/&\n{small}/", CONFIG]).check()


SOME = 5
"""How many chunks are stored when a backup is interrupted; some 15 more of 1 MiB follow, for about four seconds."""


def fill(guest: Guest) -> None:
    """Write new data that takes a while to send."""
    guest.run(["sh", "-c", "head -c 20M /dev/urandom > /var/lib/mysql/data/filling && sync"]).check()


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def used(request: pytest.FixtureRequest, lab: Lab) -> Iterator[Guest]:
    """A guest with a first backup, which several tests interrupt and leave clean."""
    with Guest.boot(lab, request.param) as booted:
        booted.run([PYTHON, "-c", PREPARE]).check()
        speed_up(booted)
        booted.run([QUICK, "backup"]).check()
        small_chunks(booted)
        yield booted


def journal(guest: Guest) -> str:
    """Return the id of the interrupted backup."""
    (backup_id,) = guest.run(["sh", "-c", "ls /var/lib/zsnapdb/journal/main"]).check().stdout.split()
    return backup_id


def stop_at_chunk(guest: Guest, count: int) -> None:
    """Stop the backup when it has stored so many chunks. It stands in the midst of the stream until a signal comes."""
    stored = "$(cat /var/lib/zsnapdb/journal/main/* 2>/dev/null | grep -c '{\"chunk\":')"
    script = f'until [ "{stored}" -ge {count} ]; do sleep 0.05; done; {STOP_COMMAND}'
    guest.run(["sh", "-c", script], timeout=600).check()


STORED_WHEN = (
    "import boto3, json, os; os.environ.update(AWS_ENDPOINT_URL='http://127.0.0.1:7070',"
    " AWS_DEFAULT_REGION='us-east-1', AWS_SHARED_CREDENTIALS_FILE='/etc/zsnapdb/credentials'); p ="
    " boto3.client('s3').get_paginator('list_objects_v2'); print(json.dumps({o['Key']: [o['ETag'],"
    " str(o['LastModified'])] for page in p.paginate(Bucket='backups', Prefix='lab/main/chunks/') for o in"
    " page.get('Contents', [])}))"
)


def chunks(guest: Guest, backup_id: str) -> dict[str, list[str]]:
    """Return every chunk of the backup, with its tag and the time it was stored."""
    stored = json.loads(guest.run([PYTHON, "-c", STORED_WHEN]).check().stdout)
    return {key: value for key, value in stored.items() if backup_id in key}


def test_killed_at_random_moments(used: Guest) -> None:
    known = backups(used)
    moments = random.Random(2).sample(range(5, 70), 3)
    for tenths in moments:
        command = used.spawn(["zsnapdb", "backup"])
        command.done.wait(tenths / 10)
        command.signal(signal.SIGKILL)
        command.wait(600)
        known = check_clean_and_working(used, known)


def test_killed_in_the_midst_of_an_upload_the_next_run_goes_on_from_the_same_snapshots(used: Guest) -> None:
    """The run has an id, and is repeated with it until it answers, and once more: it has made one backup."""
    known = backups(used)
    fill(used)
    once = ["backup", "--once", "20261127T080000Z-0123abcd"]
    command = used.spawn(["zsnapdb", *once])
    stop_at_chunk(used, SOME)
    command.signal(signal.SIGKILL)
    command.wait(600)
    started = journal(used)
    before = chunks(used, started)
    assert len(before) >= SOME
    assert backups(used) == known
    (unfinished,) = json.loads(used.run([QUICK, "list", "--json"]).check().stdout)["unfinished"]
    assert unfinished["backup_id"] == started
    (planned,) = json.loads(used.run([QUICK, "backup", "--plan", "--json"]).check().stdout)["interrupted"]
    assert (planned["backup_id"], planned["decision"]) == (started, "continue")
    for _ in range(2):
        repeated = json.loads(used.run([QUICK, *once, "--json"], timeout=600).check().stdout)
        assert (repeated["backup"]["backup_id"], repeated["repeat"]) == (started, True)
        assert backups(used) == [*known, started]
    assert started in check_clean_and_working(used, [*known, started])
    now = chunks(used, started)
    # The last chunk may have been stored without a line in the journal.
    assert sum(now[key] == before[key] for key in before) >= len(before) - 2
    assert len(now) > len(before)
    # What was stored in two runs is seen in the received files; a server that starts on them would show no more.
    words = ["restore", "main", "--to", started, "--target", "tank/continued", "--stop-after", "mount", "--json"]
    received = json.loads(used.run([QUICK, *words], timeout=600).check().stdout)
    used.run(["cmp", "/var/lib/mysql/data/filling", f"{received['mount']}/data/filling"]).check()
    used.run([QUICK, "restore", "main", "--abandon", "--target", "tank/continued"]).check()


def test_terminated_politely_it_says_how_it_goes_on_and_can_be_given_up(used: Guest) -> None:
    known = backups(used)
    fill(used)
    command = used.spawn(["zsnapdb", "backup"])
    stop_at_chunk(used, SOME)
    command.signal(signal.SIGTERM)
    command.signal(signal.SIGCONT)
    done = command.wait(600)
    assert done.code == 130
    started = journal(used)
    assert f"backup {started} is unfinished; its snapshots are held" in done.stderr
    used.run([QUICK, "backup", "--fresh"], timeout=600).check()
    assert started not in backups(used)
    check_clean_and_working(used, known)


def test_a_store_that_is_away_for_a_while_is_waited_for_and_the_same_run_ends_well(used: Guest) -> None:
    """First a backup, then the restore of this backup: each waits in the midst of the stream of the data."""
    if used.run(["cat", "/opt/s3/which"]).stdout.strip() == "moto":
        pytest.skip(
            "without a Go toolchain the guest's S3 server keeps its objects in memory, and forgets them when it ends"
        )
    known = backups(used)
    fill(used)
    command = used.spawn(["zsnapdb", "backup", "--json"])
    stop_at_chunk(used, SOME)
    started = journal(used)
    take_the_store_away(used, command)
    done = json.loads(command.wait(600).check().stdout)["backup"]
    assert (done["backup_id"], backups(used)) == (started, [*known, started])
    words = ["restore", "main", "--to", started, "--target", "tank/waited", "--json"]
    plan = json.loads(used.run([QUICK, *words, "--plan"]).check().stdout)
    receives = [step["name"] for step in plan["steps"] if step["name"].startswith("receive-")]
    command = used.spawn(["zsnapdb", *words])
    wait_for_step(command, [name for name in receives if name.endswith("-data")][-1:])
    take_the_store_away(used, command)
    restored = json.loads(command.wait(600).check().stdout)
    assert restored["gtids"] == done["position"]["gtids"]
    used.run(["cmp", "/var/lib/mysql/data/filling", f"{restored['mount']}/data/filling"]).check()
    used.run(["zfs", "destroy", "-r", "tank/waited"]).check()


def test_a_backup_whose_store_is_away_has_the_state_at_its_command(used: Guest) -> None:
    if used.run(["cat", "/opt/s3/which"]).stdout.strip() == "moto":
        pytest.skip(
            "without a Go toolchain the guest's S3 server keeps its objects in memory, and forgets them when it ends"
        )
    known, moment = backups(used), "/var/lib/mysql/data/moment"
    used.run(["sh", "-c", f"echo before > {moment} && sync"]).check()
    used.run(["/checkout/tests/lab/inside/s3", "stop"]).check()
    command = used.spawn(["zsnapdb", "backup", "--json"])
    deadline = time.monotonic() + 300
    while "the store is unreachable" not in command.output(2):
        assert not command.done.wait(0.1), command.output(2)
        assert time.monotonic() < deadline, command.output(2)
    used.run(["sh", "-c", f"echo after > {moment} && sync"]).check()
    used.run(["/checkout/tests/lab/inside/s3", "start"]).check()
    made = json.loads(command.wait(600).check().stdout)["backup"]["backup_id"]
    assert backups(used) == [*known, made]
    shown = used.run(["cat", f"/var/lib/mysql/data/.zfs/snapshot/zsnapdb-{made}/moment"]).check()
    assert shown.stdout == "before\n"
    used.run(["rm", moment]).check()
    check_clean_and_working(used, [*known, made])


def test_without_room_for_the_journal_a_backup_is_made_all_the_same(used: Guest) -> None:
    used.run(
        ["sh", "-c", "mkdir -p /var/lib/zsnapdb/journal && mount -t tmpfs -o size=8k none /var/lib/zsnapdb/journal"]
    ).check()
    fill(used)
    known = check_clean_and_working(used, [])
    used.run(["sh", "-c", "rm -rf /var/lib/zsnapdb/journal/*; dd if=/dev/zero of=/var/lib/zsnapdb/journal/full bs=4k"])
    done = used.run([QUICK, "backup", "--json"], timeout=600).check()
    assert "the journal in /var/lib/zsnapdb/journal/main cannot be written" in done.stderr
    used.run(["umount", "/var/lib/zsnapdb/journal"]).check()
    check_clean_and_working(used, known)


def test_power_cut_during_the_upload(used: Guest) -> None:
    """The last test of this guest, whose root is in memory."""
    if used.run(["cat", "/opt/s3/which"]).stdout.strip() == "moto":
        pytest.skip(
            "without a Go toolchain the guest's S3 server keeps its objects in memory, which a power cut takes with it"
        )
    known = backups(used)
    fill(used)
    # The guest's own root is in memory. The journal has to be on a disk, as on a real host.
    used.run(["rm", "-rf", "/var/lib/zsnapdb/journal"]).check()
    used.run(["zfs", "create", "-o", "mountpoint=/var/lib/zsnapdb/journal", "tank/journal"]).check()
    used.run(["zpool", "sync"]).check()
    used.spawn(["zsnapdb", "backup"])
    stop_at_chunk(used, SOME)
    started = journal(used)
    used.power_cut()
    used.start()
    after = check_clean_and_working(used, known)
    assert started in after
