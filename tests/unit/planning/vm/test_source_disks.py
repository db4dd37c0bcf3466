"""A disk that cannot be backed up refuses by its name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from zsnapdb.planning.backup.fitness import objection, warnings
from zsnapdb.planning.vm.domain import Domain, DomainDisk
from zsnapdb.planning.vm.source_disks import DiskDevice, judge

ROOT = DomainDisk("vda", "block", "disk", "/dev/zvol/tank/vms/web", False)
DATA = DomainDisk("vdb", "block", "disk", "/dev/zvol/tank/vms/web-data", False)
CD = DomainDisk("sda", "file", "cdrom", "/srv/install.iso", False)
WEB = Domain("web1", "1" * 8, (ROOT, DATA, CD), (), None, True, None)
DEVICES = {"vda": DiskDevice("tank/vms/web"), "vdb": DiskDevice("tank/vms/web-data")}


def test_the_volumes_are_the_disks_without_media_and_the_kernel_names_them() -> None:
    judged = judge(WEB, WEB, {**DEVICES, "vda": DiskDevice("tank/vms/renamed")})
    assert judged.volumes == {"vda": "tank/vms/renamed", "vdb": "tank/vms/web-data"}
    assert objection(judged.findings) is None


@pytest.mark.parametrize(
    ("domain", "devices", "words"),
    [
        (WEB, {**DEVICES, "vdb": DiskDevice(None)}, "the disk vdb of web1 is not a zvol"),
        (
            replace(WEB, disks=(ROOT, replace(DATA, kind="file", source="/srv/data.qcow2"))),
            DEVICES,
            "vdb of web1 is not a zvol of this host: file /srv/data.qcow2",
        ),
        (WEB, {**DEVICES, "vdb": DiskDevice("tank/vms/web-data", True)}, "partition of the zvol tank/vms/web-data"),
        (replace(WEB, disks=(replace(ROOT, cache="unsafe"), DATA)), DEVICES, 'vda of web1 has cache="unsafe"'),
        (WEB, {**DEVICES, "vdb": DiskDevice("tank/vms/web")}, "several disks are the zvol tank/vms/web"),
        (WEB, {**DEVICES, "vdb": DiskDevice("fast/web-data")}, "several pools: fast, tank"),
        (replace(WEB, disks=(CD,)), {}, "web1 has no disk"),
        (replace(WEB, disks=(ROOT, replace(CD, device="lun"))), DEVICES, "the disk sda of web1 is a lun of the host"),
    ],
)
def test_a_disk_that_is_no_zvol_of_the_one_pool_is_refused(
    domain: Domain, devices: dict[str, DiskDevice], words: str
) -> None:
    error = objection(judge(domain, None, devices).findings)
    assert error is not None
    assert words in error.message


def test_a_machine_that_runs_with_other_disks_than_its_next_start_is_refused() -> None:
    for running in (replace(WEB, disks=(ROOT, CD)), replace(WEB, disks=(ROOT, replace(DATA, source="/dev/zvol/x/y")))):
        error = objection(judge(WEB, running, DEVICES).findings)
        assert error is not None
        assert "runs with other disks than its configuration has: vdb" in error.message


def test_an_nvram_file_is_named_as_not_in_the_backup() -> None:
    judged = judge(replace(WEB, nvram="/nvram/web_VARS.fd"), None, DEVICES)
    assert ["/nvram/web_VARS.fd" in text for text in warnings(judged.findings)] == [True]
