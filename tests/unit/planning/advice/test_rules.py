"""Each rule of the doctor finds its planted fact, and is silent on a good host."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from datetime import date, timedelta

import pytest

from tests.unit.planning.advice.facts import (
    DATA,
    GIB,
    GOOD,
    GOOD_POOL,
    LOGS,
    NOW,
    as_replica,
    with_data,
    with_logs,
    with_memory,
    with_pool,
    with_recovery,
    with_variables,
)
from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import ConfigError
from zsnapdb.planning.advice.catalogue import RULES, Silence, check_silences, judge_advice
from zsnapdb.planning.advice.facts import AdviceFacts, DeviceFacts, LocalRepository, MemoryFacts, TableFacts
from zsnapdb.planning.advice.server_rules import possible
from zsnapdb.planning.backup.fitness import BlockSizes, Severity, warning

SINGLE = (DeviceFacts("/dev/sda", "data", "", "ONLINE"),)
DEGRADED = tuple(replace(device, health="FAULTED") for device in GOOD_POOL.devices[:1]) + GOOD_POOL.devices[1:]


def single_disk(facts: AdviceFacts) -> AdviceFacts:
    return replace(facts, pool=replace(GOOD_POOL, devices=SINGLE))


def with_log(path: str, group: str = "") -> AdviceFacts:
    return with_pool(devices=(*GOOD_POOL.devices[:2], DeviceFacts(path, "log", group, "ONLINE")))


def small_pool(flush_method: str = "O_DIRECT") -> AdviceFacts:
    return with_variables(innodb_buffer_pool_size=str(8 * GIB), innodb_flush_method=flush_method)


COMMANDS = "undo, rescue into the server, rewind, drill, clone"


def test_recovery_lists_possible_commands_and_reasons() -> None:
    good = possible(judge_advice(GOOD, ()))
    assert (good.severity, good.what, good.detail) == (Severity.OK, "recovery", f"possible now: {COMMANDS}")
    finding = possible(judge_advice(with_recovery(no_control="no unit", lets_root_in=False), ()))
    assert finding.severity is Severity.OK
    assert finding.detail == (
        "possible now: drill, clone; not possible now: undo, rescue into the server (recovery-account: root is not let"
        " in by the socket: `rescue --into-instance` and `undo --apply` need --user); rewind (rewind-control: no unit)"
    )


@pytest.mark.parametrize("what", ["server program", "plugins"])
def test_no_emergency_command_is_possible_without_a_fitting_server(what: str) -> None:
    """Each of them starts a server on restored or cloned data."""
    finding = possible([*judge_advice(GOOD, ()), warning(what, "none fits", "install it")])
    assert (finding.severity, finding.hint) == (Severity.WARNING, "install it")
    assert finding.detail == f"possible now: nothing; not possible now: {COMMANDS} ({what}: none fits)"


PLANTED: dict[str, list[AdviceFacts]] = {
    "recovery-account": [with_recovery(lets_root_in=False)],
    "repository-place": [
        replace(GOOD, local_repository=LocalRepository("/srv/backups")),
        replace(GOOD, local_repository=LocalRepository("/srv/backups", GOOD_POOL.name)),
    ],
    "rewind-control": [
        with_recovery(no_control="no unit"),
        replace(with_recovery(has_server_id_file=False), server=with_variables(Flavour.MARIADB).server),
    ],
    "recordsize-data": [with_data(recordsize="131072"), with_data(recordsize="8192")],
    "recordsize-logs": [with_logs(recordsize="16384")],
    "compression": [with_data(compression="off"), with_logs(compression="off")],
    "primarycache": [with_data(primarycache="metadata"), with_data(primarycache="none")],
    "logbias": [with_data(logbias="throughput")],
    "sync-disabled": [with_data(sync="disabled")],
    "atime": [with_data(atime="on", relatime="off")],
    "xattr": [
        with_data(xattr="dir", acltype="posix"),
        replace(
            with_variables(innodb_doublewrite="ON"),
            volumes=(LOGS, replace(DATA, properties={**DATA.properties, "xattr": "on"})),
            zfs_release=(2, 1, 11),
            uses_selinux=True,
        ),
    ],
    "redundant-metadata": [single_disk(with_data(redundant_metadata="most"))],
    "checksum": [with_data(checksum="off")],
    "dedup": [with_data(dedup="on"), with_data(dedup="sha256,verify")],
    "pool-health": [with_pool(health="DEGRADED", devices=DEGRADED)],
    "pool-errors": [with_pool(errors="3 data errors, use '-v' for a list")],
    "pool-space": [with_pool(capacity=80)],
    "pool-fragmentation": [with_pool(fragmentation=70)],
    "pool-scrub": [with_pool(last_scrub=NOW - timedelta(days=36)), with_pool(last_scrub=None)],
    "pool-trim": [with_pool(untrimmed=("/dev/sda",))],
    "ashift": [with_pool(ashifts={"/dev/sda": 9}), with_pool(ashifts={"mirror-1": 9})],
    "slog-mirror": [with_log("/dev/nvme0n1")],
    "slog-in-memory": [with_log("/dev/ram0"), with_log("/dev/zram1", "mirror-1")],
    "memory": [with_memory(arc_max=48 * GIB)],
    "arc-floor": [with_memory(arc_max=GIB // 8)],
    "zfs-nocacheflush": [with_memory(parameters={"zfs_nocacheflush": "1"})],
    "zfs-send-corrupt-data": [with_memory(parameters={"zfs_send_corrupt_data": "1"})],
    "doublewrite": [
        replace(GOOD, zfs_release=(2, 1, 11)),
        replace(GOOD, blocks=BlockSizes(16384, {16384: 6, 8192: 1}, {8192: "a.ibd"})),
        replace(with_variables(innodb_doublewrite="DETECT_ONLY"), zfs_release=(2, 1, 11)),
    ],
    "flush-method": [
        small_pool(),
        with_variables(innodb_flush_method="O_DIRECT_NO_FSYNC"),
        replace(with_variables(innodb_doublewrite="ON"), zfs_release=(0, 7, 13)),
    ],
    "native-aio": [with_variables(innodb_use_native_aio="ON")],
    "page-compression": [
        replace(GOOD, tables=TableFacts(page_compressed=1)),
        with_variables(innodb_compression_default="ON"),
    ],
    "encrypted-tables": [
        replace(
            with_variables(Flavour.MARIADB, file_key_management_filename="/etc/keys"), tables=TableFacts(encrypted=2)
        ),
        with_variables(keyring_file_data="/etc/keyring", innodb_encrypt_tables="ON"),
    ],
    "sync-binlog": [with_variables(sync_binlog="0"), with_variables(sync_binlog="100")],
    "flush-at-commit": [with_variables(innodb_flush_log_at_trx_commit="2")],
    "binlog-expiry": [
        with_variables(binlog_expire_logs_seconds="3600"),
        replace(with_variables(binlog_expire_logs_seconds="0", expire_logs_days="0"), binlog_bytes=30 * GIB),
        replace(with_variables(binlog_expire_logs_auto_purge="OFF"), binlog_bytes=30 * GIB),
    ],
    "gtid-strict": [
        with_variables(Flavour.MARIADB, gtid_strict_mode="OFF"),
        with_variables(enforce_gtid_consistency="WARN"),
    ],
    "binlog-row-metadata": [
        with_variables(binlog_row_metadata="MINIMAL"),
        with_variables(Flavour.MARIADB, binlog_row_metadata="NO_LOG"),
    ],
    "server-checksums": [
        with_variables(innodb_checksum_algorithm="none"),
        with_variables(innodb_log_checksums="OFF"),
        with_variables(binlog_checksum="NONE"),
    ],
    "lock-privileges": [replace(GOOD, privileges=frozenset({"RELOAD", "PROCESS"}))],
}


def fired(facts: AdviceFacts) -> list[str]:
    return list(dict.fromkeys(f.rule for f in judge_advice(facts, ()) if f.severity is not Severity.OK))


def test_on_a_good_host_no_rule_says_anything() -> None:
    assert fired(GOOD) == []
    assert [f.severity for f in judge_advice(GOOD, ())] == [Severity.OK]


def test_each_rule_has_a_planted_fact() -> None:
    assert set(PLANTED) == {rule.id for rule in RULES}
    assert len({rule.id for rule in RULES}) == len(RULES)


@pytest.mark.parametrize(
    ("rule", "facts"),
    [(rule, facts) for rule, planted in PLANTED.items() for facts in planted],
    ids=[f"{rule}-{number}" for rule, planted in PLANTED.items() for number in range(len(planted))],
)
def test_a_planted_fact_is_found_by_its_rule_alone(rule: str, facts: AdviceFacts) -> None:
    assert fired(facts) == [rule]
    assert all(f.hint and f.detail for f in judge_advice(facts, ()) if f.rule)


def missing_one(facts: AdviceFacts) -> Iterator[AdviceFacts]:
    """Yield the facts without each variable of the server, and without each property of a volume."""
    for name in facts.server.variables:
        variables = {other: value for other, value in facts.server.variables.items() if other != name}
        yield replace(facts, server=replace(facts.server, variables=variables))
    for place, volume in enumerate(facts.volumes):
        for name in volume.properties:
            properties = {other: value for other, value in volume.properties.items() if other != name}
            volumes = list(facts.volumes)
            volumes[place] = replace(volume, properties=properties)
            yield replace(facts, volumes=tuple(volumes))


def test_no_rule_fires_because_its_fact_is_missing() -> None:
    for facts in (GOOD, *itertools.chain.from_iterable(PLANTED.values())):
        for less in missing_one(facts):
            assert set(fired(less)) <= set(fired(facts))
            assert not any(" None" in found.detail or "= ," in found.detail for found in judge_advice(less, ()))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_says_what_should_be_why_and_by_which_source(rule: object) -> None:
    for part in ("title", "reason", "source", "fix"):
        assert len(getattr(rule, part)) > 10
    assert getattr(rule, "title").endswith(".")  # noqa: B009


def test_facts_that_could_not_be_read_are_named_and_judged_by_no_rule() -> None:
    blind = replace(
        GOOD, volumes=(), pool=None, memory=MemoryFacts(), privileges=None, tables=None, unread=("the pool tank: gone",)
    )
    assert fired(blind) == []
    assert "not judged: the pool tank: gone" in [f.detail for f in judge_advice(blind, ())]


@pytest.mark.parametrize(
    "facts",
    [
        with_data(direct="disabled"),
        replace(small_pool(), zfs_release=(2, 2, 7)),
        small_pool("fsync"),
        replace(small_pool(), volumes=(LOGS, replace(DATA, properties={**DATA.properties, "direct": "disabled"}))),
        replace(small_pool(), memory=MemoryFacts(64 * GIB, 4 * GIB)),
    ],
)
def test_o_direct_matters_where_it_bypasses_an_arc_that_is_larger_than_the_buffer_pool(facts: AdviceFacts) -> None:
    assert fired(facts) == []


def test_page_compression_is_dangerous_where_o_direct_is_honoured() -> None:
    def detail(facts: AdviceFacts) -> str:
        (finding,) = [f for f in judge_advice(replace(facts, tables=TableFacts(3)), ()) if f.rule]
        return finding.detail

    assert "EINVAL" in detail(GOOD)
    assert "EINVAL" not in detail(with_variables(innodb_flush_method="fsync"))
    assert "EINVAL" not in detail(replace(with_variables(innodb_doublewrite="ON"), zfs_release=(2, 2, 7)))


@pytest.mark.parametrize(
    "facts",
    [
        as_replica(with_variables(innodb_flush_log_at_trx_commit="2")),
        with_data(redundant_metadata="most"),
        with_data(atime="on"),
        with_data(xattr="dir"),
        replace(with_data(xattr="on"), uses_selinux=True),
        with_pool(last_scrub=None, is_scrub_known=False),
        with_pool(last_scrub=None, created=NOW - timedelta(days=3)),
        with_pool(autotrim=True, untrimmed=("/dev/sda",)),
        with_pool(fragmentation=None, capacity=None),
        with_pool(ashifts={}),
        with_variables(binlog_expire_logs_seconds="0", expire_logs_days="0"),
        replace(GOOD, lock=replace(GOOD.lock, privileges=()), privileges=frozenset({"PROCESS"})),
        replace(GOOD, privileges=frozenset({"SUPER"})),
        replace(
            with_variables(keyring_file_data="/k"),
            tables=TableFacts(encrypted=1),
            copy_options=("early-plugin-load=keyring_file.so", "keyring-file-data=/k"),
        ),
        replace(
            with_memory(arc_max=GIB // 8), pool=replace(GOOD_POOL, devices=(DeviceFacts("/c", "cache", "", "ONLINE"),))
        ),
    ],
)
def test_what_is_right_in_its_place_is_no_finding(facts: AdviceFacts) -> None:
    assert fired(facts) == []


def test_a_silenced_rule_is_told_and_counts_as_ok_until_its_day() -> None:
    facts = with_variables(sync_binlog="0")
    silence = Silence("sync-binlog", "a cache that may be lost", NOW.date())
    (finding,) = [f for f in judge_advice(facts, (silence,)) if f.rule]
    assert finding.severity is Severity.OK
    assert "a cache that may be lost" in finding.detail
    over = replace(silence, until=NOW.date() - timedelta(days=1))
    (finding,) = [f for f in judge_advice(facts, (over,)) if f.rule]
    assert finding.severity is Severity.WARNING
    assert "was silenced until 2026-11-21" in finding.detail


def test_a_silence_of_no_rule_or_of_what_prevents_backups_is_refused() -> None:
    check_silences([Silence("memory", "other servers share this host", date(2027, 1, 1))])
    with pytest.raises(ConfigError, match="'memery', which does not exist"):
        check_silences([Silence("memery", "a slip of the pen", date(2027, 1, 1))])
    with pytest.raises(ConfigError, match="prevent a backup cannot be silenced"):
        check_silences([Silence("lock-privileges", "not now, please", date(2027, 1, 1))])


def test_a_log_device_in_small_sectors_is_removed_and_no_new_pool_is_made() -> None:
    alone = DeviceFacts("/dev/disk/by-id/nvme-x-part1", "cache", "", "ONLINE")
    facts = with_pool(ashifts={"/dev/sda": 9, "mirror-1": 9, "nvme-x": 9}, devices=(*GOOD_POOL.devices, alone))
    fixes = [f.hint for f in judge_advice(facts, ()) if f.rule == "ashift"]
    assert fixes[0].startswith("zpool remove tank mirror-1, then add it again: zpool add -o ashift=12 tank log")
    assert fixes[1].startswith("zpool remove tank nvme-x, then add it again: zpool add -o ashift=12 tank cache")
    assert "zpool create -o ashift=12" in fixes[2]
    assert len(fixes) == 3
