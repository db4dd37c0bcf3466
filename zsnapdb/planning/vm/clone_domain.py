"""Derives the XML of a clone's domain from the XML of its base. Pure: the same input always gives the same text.

As with virt-clone(1), these parts must differ from the base: name, UUID (also in the SMBIOS data), MAC addresses, NVRAM
file, serial and channel paths, and graphics ports. The generation id also differs, so that the guest creates a new seed
for random numbers (QEMU, "Virtual Machine Generation ID"). Parts that could reach production are removed or refused.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from xml.etree import ElementTree

from zsnapdb.base.errors import PreflightError
from zsnapdb.planning.vm.domain import QEMU_ARGUMENT, QEMU_COMMAND_LINE, DomainMark, mark_element, parse, root_of

_DEVICES = {
    *("audio", "channel", "console", "controller", "disk", "emulator", "graphics", "hub", "input", "interface"),
    *("iommu", "memballoon", "panic", "redirdev", "rng", "serial", "sound", "tpm", "video", "vsock", "watchdog"),
}
"""The devices that zsnapdb can create separately for each clone. A domain with any other device is refused."""
_LOCAL_LINES = ("pty", "file", "null", "unix", "spicevmc", "qemu-vdagent", "dbus", "stdio")
_HARMLESS_ARGUMENTS = ("-icount",)
"""Harmless arguments of <qemu:commandline>, each with one value. These arguments contain no file and no address."""


@dataclass(frozen=True)
class CloneNetwork:
    """The network of a clone's interfaces: a libvirt network or a bridge of the host."""

    kind: str
    name: str

    @property
    def words(self) -> str:
        """The kind and the name of the network as text."""
        return f"{self.kind} {self.name}"


@dataclass(frozen=True)
class DomainIdentity:
    """The parts of a clone's domain that differ from its base.

    - `disks`: the device of each disk, by target
    - `nvram`: the clone's NVRAM file, if the base has one
    - `serial_log`: the file for the output of the first serial line, if any
    - `memory` (bytes), `cpus`: None for the values of the base
    - `seed`: the image of an additional CD, if any
    """

    name: str
    uuid: str
    generation: str
    dataset: str
    disks: Mapping[str, str]
    network: CloneNetwork
    serial_log: str | None
    nvram: str | None = None
    memory: int | None = None
    cpus: int | None = None
    seed: str | None = None


def macs(uuid: str, count: int) -> tuple[str, ...]:
    """Return the MAC addresses of a machine's interfaces. QEMU and libvirt use the prefix 52:54:00."""
    digests = (hashlib.sha256(f"{uuid} {number}".encode()).hexdigest() for number in range(count))
    return tuple(f"52:54:00:{digest[:2]}:{digest[2:4]}:{digest[4:6]}" for digest in digests)


def obstacles(text: str) -> tuple[str, ...]:
    """Return the sorted reasons why the domain cannot be a base.

    An obstacle is a part that a clone would share with the base, or something outside the clone that it could reach.
    """
    root = root_of(text)
    reasons = [f"device {device.tag}" for device in root.iterfind("devices/*") if device.tag not in _DEVICES]
    reasons += [f"disk {d.target} is shared with other machines" for d in parse(text).volumes if d.is_shared]
    reasons += [f"a {d.tag} of type {d.get('type')}" for d in _lines(root) if d.get("type") not in _LOCAL_LINES]
    reasons += ["a TPM of the host" for b in root.iterfind("devices/tpm/backend") if b.get("type") != "emulator"]
    reasons += ["a random source of type egd" for b in root.iterfind("devices/rng/backend") if b.get("model") == "egd"]
    reasons += [f"the argument {argument} of QEMU" for argument in _strange_arguments(root)]
    return tuple(sorted(set(reasons)))


def _lines(root: ElementTree.Element) -> list[ElementTree.Element]:
    return [
        element for kind in ("serial", "console", "channel", "redirdev") for element in root.iterfind(f"devices/{kind}")
    ]


def _strange_arguments(root: ElementTree.Element) -> list[str]:
    line = root.find(QEMU_COMMAND_LINE)
    if line is None:
        return []
    words = [word.get("value", "") for word in line.iterfind(QEMU_ARGUMENT)]
    strange = [child.tag.rpartition("}")[2] for child in line if child.tag != QEMU_ARGUMENT]
    return strange + [word for word in words[::2] if word not in _HARMLESS_ARGUMENTS]


def clone_xml(base: str, identity: DomainIdentity) -> str:
    """Return the XML of the clone's domain. The caller must check that the base has no `obstacles`."""
    root = copy.deepcopy(root_of(base))
    root.attrib.pop("id", None)
    for tag in ("title", "description", "metadata", "uuid", "genid", "seclabel"):
        for element in root.findall(tag):
            root.remove(element)
    name = root.find("name")
    assert name is not None
    name.text = identity.name
    root.insert(1, _element("uuid", identity.uuid))
    root.insert(2, mark_element(DomainMark(identity.name, identity.uuid, identity.dataset)))
    if "<genid" in base:
        root.insert(3, _element("genid", identity.generation))
    for entry in root.iterfind("sysinfo/system/entry"):
        if entry.get("name") == "uuid":
            entry.text = identity.uuid
    _resize(root, identity)
    _firmware(root, identity)
    devices = root.find("devices")
    if devices is not None:
        _disks(devices, identity)
        if identity.seed is not None:
            _seed(devices, _machine_type(root), identity.seed)
        _interfaces(devices, identity)
        _character_lines(devices, identity)
        _screens(devices)
    return _text(root)


def _text(root: ElementTree.Element) -> str:
    for element in root.iter():
        if len(element) == 0 and not (element.text or "").strip():
            element.text = None
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _element(tag: str, text: str = "", **attributes: str) -> ElementTree.Element:
    element = ElementTree.Element(tag, attributes)
    element.text = text or None
    return element


def _remove(parent: ElementTree.Element, *tags: str) -> None:
    for tag in tags:
        for element in parent.findall(tag):
            parent.remove(element)


def _resize(root: ElementTree.Element, identity: DomainIdentity) -> None:
    if identity.memory is not None:
        _remove(root, "currentMemory", "maxMemory")
        for element in root.findall("memory"):
            element.attrib.clear()
            element.set("unit", "b")
            element.text = str(identity.memory)
    if identity.cpus is not None:
        # CPU pins, topology and NUMA cells depend on the number of processors of the base.
        _remove(root, "cputune", "vcpus", "numatune")
        for cpu in root.findall("cpu"):
            _remove(cpu, "topology", "numa")
        for element in root.findall("vcpu"):
            element.attrib.clear()
            element.text = str(identity.cpus)


def _firmware(root: ElementTree.Element, identity: DomainIdentity) -> None:
    for nvram in root.iterfind("os/nvram"):
        # The file is a copy of the base's file, so no template is needed.
        nvram.attrib.clear()
        for child in list(nvram):
            nvram.remove(child)
        nvram.text = identity.nvram


def _disks(devices: ElementTree.Element, identity: DomainIdentity) -> None:
    for disk in devices.findall("disk"):
        _remove(disk, "backingStore", "alias", "mirror", "auth", "encryption", "serial", "wwn")
        if disk.get("device", "disk") != "disk":
            _remove(disk, "source")
            continue
        target = disk.find("target")
        assert target is not None
        disk.set("type", "block")
        _remove(disk, "driver", "source")
        driver = _element("driver", name="qemu", type="raw", cache="none", io="native", discard="unmap")
        disk.insert(0, driver)
        disk.insert(1, _element("source", dev=identity.disks[target.get("dev", "")]))


def _machine_type(root: ElementTree.Element) -> str:
    element = root.find("os/type")
    return element.get("machine", "") if element is not None else ""


def _seed(devices: ElementTree.Element, machine: str, image: str) -> None:
    """Add a CD drive with the image on the bus that this machine type has. Raises PreflightError if the bus is full."""
    bus, prefix, most = ("sata", "sd", 6) if "q35" in machine else ("scsi", "sd", 7)
    if machine == "pc" or machine.startswith("pc-i440fx"):
        bus, prefix, most = "ide", "hd", 4
    taken = {target.get("dev") for target in devices.iterfind("disk/target")}
    free = [name for name in (f"{prefix}{chr(ord('a') + number)}" for number in range(most)) if name not in taken]
    if not free:
        raise PreflightError(
            f"the domain has no place left for a CD: its {bus} bus is full", hint="remove an unused CD from the domain"
        )
    disk = _element("disk", type="file", device="cdrom")
    disk.append(_element("driver", name="qemu", type="raw"))
    disk.append(_element("source", file=image))
    disk.append(_element("target", dev=free[-1], bus=bus))
    disk.append(_element("readonly"))
    devices.insert(1 + max((n for n, child in enumerate(devices) if child.tag == "disk"), default=-1), disk)


def _interfaces(devices: ElementTree.Element, identity: DomainIdentity) -> None:
    interfaces = devices.findall("interface")
    for interface, address in zip(interfaces, macs(identity.uuid, len(interfaces)), strict=True):
        kept = [child for child in interface if child.tag in ("model", "driver", "address", "boot", "mtu", "rom")]
        for child in list(interface):
            interface.remove(child)
        interface.attrib.clear()
        interface.set("type", identity.network.kind)
        interface.append(_element("mac", address=address))
        interface.append(_element("source", **{identity.network.kind: identity.network.name}))
        interface.extend(kept)


def _character_lines(devices: ElementTree.Element, identity: DomainIdentity) -> None:
    """Give serial lines and channels separate paths. libvirt chooses each path that is missing."""
    for number, serial in enumerate(devices.findall("serial")):
        _own_line(serial, "pty")
        if number == 0 and identity.serial_log is not None:
            serial.append(_element("log", file=identity.serial_log, append="off"))
    for console in devices.findall("console"):
        _own_line(console, "pty")
    for channel in devices.findall("channel"):
        # The source path of a channel of type unix is derived from the domain's name if it is not given.
        _remove(channel, "source", "log", "alias")
        for target in channel.findall("target"):
            target.attrib.pop("state", None)


def _own_line(element: ElementTree.Element, kind: str) -> None:
    element.attrib.clear()
    element.set("type", kind)
    _remove(element, "source", "log", "alias", "protocol")


def _screens(devices: ElementTree.Element) -> None:
    for graphics in devices.findall("graphics"):
        if graphics.get("type") not in ("vnc", "spice"):
            continue
        kept = {key: value for key, value in graphics.attrib.items() if key in ("type", "keymap")}
        graphics.attrib.clear()
        graphics.attrib.update({**kept, "autoport": "yes", "listen": "127.0.0.1"})
        _remove(graphics, "listen")
    for vsock in devices.findall("vsock"):
        _remove(vsock, "cid")
        vsock.insert(0, _element("cid", auto="yes"))


def new_domain(name: str, targets: Mapping[str, str], memory: int, cpus: int, *, kind: str = "kvm") -> str:
    """Return the XML of a plain machine for a base, with virtio devices, a serial line and the guest agent."""
    root = ElementTree.Element("domain", type=kind)
    root.append(_element("name", name))
    root.append(_element("memory", str(memory), unit="b"))
    root.append(_element("vcpu", str(cpus)))
    system = _element("os")
    system.append(_element("type", "hvm", arch="x86_64", machine="q35"))
    system.append(_element("boot", dev="hd"))
    root.append(system)
    features = _element("features")
    features.extend((_element("acpi"), _element("apic")))
    root.append(features)
    root.append(_element("genid", "00000000-0000-0000-0000-000000000000"))
    devices = _element("devices")
    for target, device in targets.items():
        disk = _element("disk", type="block", device="disk")
        disk.append(_element("source", dev=device))
        disk.append(_element("target", dev=target, bus="virtio"))
        devices.append(disk)
    interface = _element("interface", type="network")
    interface.append(_element("source", network="default"))
    interface.append(_element("model", type="virtio"))
    devices.append(interface)
    devices.append(_element("serial", type="pty"))
    devices.append(_element("console", type="pty"))
    channel = _element("channel", type="unix")
    channel.append(_element("target", type="virtio", name="org.qemu.guest_agent.0"))
    devices.append(channel)
    rng = _element("rng", model="virtio")
    rng.append(_element("backend", "/dev/urandom", model="random"))
    devices.append(rng)
    root.append(devices)
    return _text(root)
