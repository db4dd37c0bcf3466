"""The domain of a restored machine names nothing on the host but its own disks, whatever the manifest says."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.unit.planning.vm.test_clone_domain import BASE, GOLDEN
from zsnapdb.base.errors import DamagedError
from zsnapdb.planning.vm.domain import parse, root_of
from zsnapdb.planning.vm.restored_domain import HostBoot, RestoredIdentity, is_of_restore, restored

IDENTITY = RestoredIdentity(
    name="web-restored",
    uuid="c1c1c1c1-0000-4000-8000-000000000001",
    generation="d1d1d1d1-0000-4000-8000-000000000001",
    dataset="tank/restored",
    restore_id="20261122T120000Z-0001",
    disks={"vda": "/dev/zvol/tank/restored/vda", "vdb": "/dev/zvol/tank/restored/vdb"},
)
NETWORK = "zsnapdb-isolated"
HOSTILE = """<domain type='xen' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>evil</name><uuid>11111111-2222-4333-8444-555555555555</uuid>
  <memory unit='KiB'>1024</memory>
  <os><type arch='x86_64'>hvm</type><kernel>/etc/shadow</kernel><loader type='pflash'>/etc/passwd</loader>
    <nvram>/root/.ssh/id_ed25519</nvram></os>
  <sysinfo type='fwcfg'><entry name='opt/x' file='/etc/shadow'/></sysinfo>
  <memoryBacking><source type='file'/></memoryBacking>
  <features><acpi/><x path='/etc/shadow'/></features>
  <devices>
    <emulator>/tmp/evil</emulator>
    <disk type='block' device='disk'><source dev='/dev/sda'/><target dev='vda'/><backingStore><source file='/etc/x'/>
      </backingStore></disk>
    <disk type='block' device='lun'><source dev='/dev/sdb'/><target dev='sdb'/></disk>
    <disk type='file' device='cdrom'><source file='/etc/shadow'/><target dev='sda'/></disk>
    <filesystem type='mount'><source dir='/'/><target dir='host'/></filesystem>
    <hostdev mode='subsystem' type='pci'/>
    <serial type='file'><source path='/etc/cron.d/x'/><log file='/etc/cron.d/y'/><target port='0'/></serial>
    <channel type='file'><source path='/etc/cron.d/z'/></channel>
    <input type='evdev'><source dev='/dev/input/event0'/></input>
    <rng model='virtio'><backend model='random'>/etc/shadow</backend></rng>
    <graphics type='egl-headless'><gl rendernode='/dev/dri/renderD128'/></graphics>
    <interface type='vhostuser'><source type='unix' path='/run/x'/><script path='/tmp/evil'/><model type='virtio'/>
    </interface>
    <tpm model='tpm-tis'><backend type='passthrough'><device path='/dev/tpm0'/></backend></tpm>
  </devices>
  <seclabel type='none'/>
  <qemu:commandline><qemu:arg value='-drive'/><qemu:arg value='file=/etc/shadow'/></qemu:commandline>
</domain>"""


def test_the_domain_of_a_restored_machine_is_the_golden_one() -> None:
    made = restored(BASE, IDENTITY, NETWORK)
    assert made.xml == (GOLDEN / "restored.xml").read_text()
    domain = parse(made.xml)
    assert {disk.target: disk.source for disk in domain.volumes} == dict(IDENTITY.disks)
    assert not set(domain.macs) & set(parse(BASE).macs)
    assert domain.mark is None


def test_nothing_that_a_manifest_names_on_the_host_gets_into_the_domain() -> None:
    made = restored(HOSTILE, IDENTITY, NETWORK)
    paths = set(re.findall(r"[\"'>](/[^\"'<]*)", made.xml))
    assert paths == {"/dev/zvol/tank/restored/vda"}
    assert "qemu:" not in made.xml
    root = root_of(made.xml)
    assert root.get("type") == "kvm"
    assert sorted(device.tag for device in root.iterfind("devices/*")) == ["disk", "disk", "interface", "serial"]
    assert [link.get("state") for link in root.iterfind("devices/interface/link")] == ["down"]
    assert {"os/kernel /etc/shadow", "devices/disk", "devices/hostdev", "devices/filesystem", "devices/tpm"} <= set(
        made.left_out
    )


def test_a_machine_boots_from_files_of_the_host_that_its_administrator_named_and_from_no_others() -> None:
    boot = HostBoot("/opt/vm/vmlinuz", "/opt/vm/initrd", "root=/dev/vda quiet")
    made = restored(HOSTILE, replace(IDENTITY, boot=boot, memory=64 << 20), NETWORK)
    system = root_of(made.xml).find("os")
    assert system is not None
    assert {part.tag: part.text for part in system if part.tag not in ("type", "loader", "nvram")} == {
        "kernel": boot.kernel,
        "initrd": boot.initrd,
        "cmdline": boot.cmdline,
    }
    assert "/etc/shadow" not in made.xml
    assert not [part for part in made.left_out if part.startswith("os/kernel")]
    assert root_of(made.xml).findtext("memory") == str(64 << 20)


def test_a_guest_cannot_write_the_firmware_of_the_host() -> None:
    firmware = "/usr/share/OVMF/OVMF_CODE.fd"
    for given in ("", "readonly='no'"):
        text = HOSTILE.replace("<loader type='pflash'>/etc/passwd<", f"<loader {given} type='pflash'>{firmware}<")
        (loader,) = root_of(restored(text, IDENTITY, NETWORK).xml).findall("os/loader")
        assert (loader.text, loader.get("readonly")) == (firmware, "yes")


def test_elements_that_lie_deep_in_each_other_are_damage() -> None:
    text = HOSTILE.replace("<acpi/>", "<a>" * 30_000 + "</a>" * 30_000)
    with pytest.raises(DamagedError, match="more than 32 levels"):
        restored(text, IDENTITY, NETWORK)


def test_a_domain_is_of_the_restore_that_made_it_and_a_copy_of_it_is_not() -> None:
    made = restored(BASE, IDENTITY, NETWORK).xml
    assert is_of_restore(made, IDENTITY.restore_id)
    assert not is_of_restore(made, "20261122T120000Z-0002")
    assert not is_of_restore(BASE, IDENTITY.restore_id)
    copy = made.replace(f"<uuid>{IDENTITY.uuid}</uuid>", "<uuid>c2c2c2c2-0000-4000-8000-000000000002</uuid>")
    assert not is_of_restore(copy, IDENTITY.restore_id)
