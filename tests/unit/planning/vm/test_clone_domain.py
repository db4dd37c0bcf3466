"""The domain of a clone has nothing of its base that must be its own, and nothing that leads to production."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from zsnapdb.base.errors import DamagedError
from zsnapdb.planning.vm.clone_domain import (
    CloneNetwork,
    DomainIdentity,
    clone_xml,
    macs,
    new_domain,
    obstacles,
)
from zsnapdb.planning.vm.domain import DomainMark, parse

GOLDEN = Path(__file__).parent / "golden"
BASE = (GOLDEN / "base.xml").read_text()
FIRST = DomainIdentity(
    name="pxc1",
    uuid="c1c1c1c1-0000-4000-8000-000000000001",
    generation="d1d1d1d1-0000-4000-8000-000000000001",
    dataset="tank/zsnapdb/vms/machines/pxc1",
    disks={
        "vda": "/dev/zvol/tank/zsnapdb/vms/machines/pxc1/vda",
        "vdb": "/dev/zvol/tank/zsnapdb/vms/machines/pxc1/vdb",
    },
    network=CloneNetwork("network", "zsnapdb-isolated"),
    serial_log="/var/lib/zsnapdb/vms/machines/pxc1.serial.log",
    nvram="/var/lib/zsnapdb/vms/machines/pxc1.nvram",
)
SECOND = replace(
    FIRST,
    name="pxc2",
    uuid="c2c2c2c2-0000-4000-8000-000000000002",
    network=CloneNetwork("bridge", "br-test"),
    memory=1 << 30,
    cpus=1,
)


@pytest.mark.parametrize(("file", "identity"), [("clone.xml", FIRST), ("clone-resized.xml", SECOND)])
def test_the_domain_of_a_clone_is_the_golden_one(file: str, identity: DomainIdentity) -> None:
    assert clone_xml(BASE, identity) == (GOLDEN / file).read_text()


def test_the_same_base_and_identity_give_the_same_text() -> None:
    assert clone_xml(BASE, FIRST) == clone_xml(BASE, FIRST)


def test_a_clone_keeps_no_word_that_names_its_base_or_production() -> None:
    text = clone_xml(BASE, FIRST)
    for word in ("gold", "11111111", "aaaaaaaa", "de:ad", "br-production", "eth0", "hunter2", "5907", "0.0.0.0", "iso"):
        assert word not in text.replace("isolated", "").replace("isa-serial", ""), word


def test_two_clones_share_no_address() -> None:
    domains = [parse(clone_xml(BASE, identity)) for identity in (FIRST, SECOND)]
    addresses = [mac for domain in domains for mac in domain.macs]
    assert len(set(addresses)) == len(addresses) == 4
    assert macs(FIRST.uuid, 2) == domains[0].macs


def test_every_disk_of_a_clone_is_written_without_the_cache_of_the_host() -> None:
    root = ElementTree.fromstring(clone_xml(BASE, FIRST))
    disks = [disk for disk in root.iterfind("devices/disk") if disk.get("device") == "disk"]
    assert [disk.get("type") for disk in disks] == ["block", "block"]
    wanted = {"name": "qemu", "type": "raw", "cache": "none", "io": "native", "discard": "unmap"}
    drivers = [disk.find("driver") for disk in disks]
    assert [driver.attrib for driver in drivers if driver is not None] == [wanted, wanted]


def test_a_clone_carries_its_mark_and_a_copy_of_it_by_others_does_not_count() -> None:
    domain = parse(clone_xml(BASE, FIRST))
    assert domain.mark == DomainMark(FIRST.name, FIRST.uuid, FIRST.dataset)
    assert domain.is_marked(FIRST.name, FIRST.uuid, FIRST.dataset)
    copied = replace(domain, uuid="99999999-0000-4000-8000-000000000009")
    assert not copied.is_marked(FIRST.name, FIRST.uuid, FIRST.dataset)


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ("<hostdev mode='subsystem' type='pci'/>", "device hostdev"),
        ("<filesystem type='mount'><source dir='/srv'/></filesystem>", "device filesystem"),
        ("<shmem name='x'/>", "device shmem"),
        ("<serial type='tcp'><source mode='connect' host='10.0.0.1' service='1'/></serial>", "a serial of type tcp"),
        ("<tpm><backend type='passthrough'/></tpm>", "a TPM of the host"),
        ("<disk type='block'><target dev='vdc'/><shareable/></disk>", "disk vdc is shared with other machines"),
    ],
)
def test_a_domain_with_something_that_a_clone_would_share_is_no_base(part: str, reason: str) -> None:
    assert obstacles(BASE) == ()
    assert obstacles(BASE.replace("</devices>", f"{part}</devices>")) == (reason,)


@pytest.mark.parametrize(("words", "found"), [(("-icount", "shift=2"), ()), (("-netdev", "tap"), ("-netdev",))])
def test_arguments_of_qemu_that_could_lead_anywhere_are_refused(words: tuple[str, ...], found: tuple[str, ...]) -> None:
    line = "".join(f"<qemu:arg value='{word}'/>" for word in words)
    text = BASE.replace("<domain ", "<domain xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0' ")
    text = text.replace("</domain>", f"<qemu:commandline>{line}</qemu:commandline></domain>")
    assert obstacles(text) == tuple(f"the argument {word} of QEMU" for word in found)


def test_the_machine_of_an_image_is_itself_a_base() -> None:
    xml = new_domain("small", {"vda": "/dev/null"}, 1 << 30, 2)
    assert obstacles(xml) == ()
    domain = parse(clone_xml(xml, replace(FIRST, nvram=None)))
    assert (domain.name, domain.has_agent, domain.volumes[0].source) == ("pxc1", True, FIRST.disks["vda"])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<network/>",
        "<domain/>",
        "<domain><name>a</name><uuid>../x</uuid></domain>",
        "<!DOCTYPE a [<!ENTITY b 'c'>]><domain><name>&b;</name></domain>",
        "<domain><name>a</name><devices><disk><target dev='../vda'/></disk></devices></domain>",
    ],
)
def test_a_text_that_is_not_a_domain_is_damaged(text: str) -> None:
    with pytest.raises(DamagedError):
        parse(text)
