"""A guest with cloud-init gets an identity of its own from files that follow from its name and UUID alone."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.planning.vm.test_clone_domain import BASE, FIRST
from zsnapdb.base.errors import PreflightError, UsageError
from zsnapdb.planning.vm.clone_domain import clone_xml
from zsnapdb.planning.vm.cloud_init import GuestIdentity, guest_identity, image, refuse_no_host_name, seed_files
from zsnapdb.planning.vm.domain import parse

GOLDEN = Path(__file__).parent / "golden"
SEED = "/var/lib/zsnapdb/vms/machines/pxc1.seed.iso"


@pytest.mark.parametrize("name", ["meta-data", "user-data"])
def test_the_files_of_a_seed_are_the_golden_ones(name: str) -> None:
    assert seed_files(FIRST.name, FIRST.uuid)[name] == (GOLDEN / f"seed-{name}").read_bytes()


def test_the_domain_of_a_clone_with_a_seed_is_the_golden_one() -> None:
    text = clone_xml(BASE, replace(FIRST, seed=SEED))
    assert text == (GOLDEN / "clone-seeded.xml").read_text()
    assert parse(text).volumes == parse(clone_xml(BASE, FIRST)).volumes


@pytest.mark.parametrize(
    ("machine", "bus", "target"), [("pc", "ide", "hdd"), ("pc-i440fx-9.2", "ide", "hdd"), ("virt-9.2", "scsi", "sdg")]
)
def test_the_cd_is_on_a_bus_that_the_machine_has(machine: str, bus: str, target: str) -> None:
    text = clone_xml(BASE.replace("pc-q35-9.2", machine), replace(FIRST, seed=SEED))
    assert f'<target dev="{target}" bus="{bus}" />' in text


def test_a_machine_without_a_place_for_the_cd_is_refused() -> None:
    full = "".join(f"<disk device='cdrom'><target dev='sd{letter}' bus='sata'/></disk>" for letter in "bcdef")
    with pytest.raises(PreflightError, match="sata bus is full"):
        clone_xml(BASE.replace("<devices>", f"<devices>{full}"), replace(FIRST, seed=SEED))


@pytest.mark.parametrize(("kind", "root", "codec"), [(1, 23, "ascii"), (2, 24, "utf-16-be")])
def test_the_image_has_the_files_under_their_names_in_both_directories(kind: int, root: int, codec: str) -> None:
    files = {"meta-data": b"x" * 5000, "user-data": b"", "vendor-data": b"last"}
    made = image(files)
    descriptor = made[(15 + kind) * 2048 :][:2048]
    assert descriptor[:6] == bytes([kind]) + b"CD001"
    assert descriptor[40:72].decode(codec).strip() == "cidata"
    assert struct.unpack("<I", descriptor[80:84])[0] * 2048 == len(made)
    assert struct.unpack("<I", descriptor[158:162])[0] == root
    assert read_directory(made, root, codec) == files


def read_directory(made: bytes, root: int, codec: str) -> dict[str, bytes]:
    """Return the files of a directory of one block (ECMA-119, 9.1)."""
    found, at = {}, root * 2048
    while length := made[at]:
        record = made[at : at + length]
        block, size = struct.unpack("<I", record[2:6])[0], struct.unpack("<I", record[10:14])[0]
        name = record[33 : 33 + record[32]]
        if name not in (b"\0", b"\1"):
            found[name.decode(codec)] = made[block * 2048 :][:size]
        at += length
    return found


def test_two_clones_get_different_instances() -> None:
    assert seed_files("pxc1", "a")["meta-data"] != seed_files("pxc1", "b")["meta-data"]


def test_the_same_seed_gives_the_same_image() -> None:
    assert image(seed_files("pxc1", "a")) == image(seed_files("pxc1", "a"))


def test_another_way_to_an_identity_is_refused() -> None:
    assert guest_identity("cloud-init") is GuestIdentity.CLOUD_INIT
    with pytest.raises(UsageError, match="'sysprep' is not an identity method"):
        guest_identity("sysprep")


def test_a_name_that_is_no_host_name_is_refused() -> None:
    refuse_no_host_name(("pxc-1",))
    with pytest.raises(UsageError, match="ends with a hyphen"):
        refuse_no_host_name(("pxc1", "pxc-"))
