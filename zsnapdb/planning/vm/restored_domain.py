"""Derives the XML of a restored machine's domain from the XML in a manifest. Pure.

An attacker may have written the manifest, and a domain can refer to any file, program and device of the host. So only
the parts that this module lists are kept. Among the kept values, only those in `TRUSTED` can be paths.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from xml.etree import ElementTree

from zsnapdb.planning.vm.clone_domain import CloneNetwork, DomainIdentity, clone_xml
from zsnapdb.planning.vm.domain import NAMESPACE, QEMU_ARGUMENT, QEMU_COMMAND_LINE, parse, root_of

_RESTORED = f"{{{NAMESPACE}}}restored"
_PLAIN = re.compile(r"[A-Za-z0-9_.:,+ -]{0,128}")
"""The pattern of values that cannot refer to a file, program or device of the host."""
TRUSTED = re.compile(
    r"/dev/u?random|/usr/share/(OVMF|AAVMF|edk2|edk2-ovmf|qemu|seabios)/([A-Za-z0-9][A-Za-z0-9_-]*/)?"
    r"[A-Za-z0-9][A-Za-z0-9_.-]*"
)
"""The random devices of the kernel, and the firmware files that QEMU packages install."""
_ICOUNT = re.compile(r"[a-z0-9=,]{1,64}")


@dataclass(frozen=True)
class _Shape:
    """The parts of an element to keep: attributes, children and text. If `is_open` is set, all plain parts are kept."""

    attributes: tuple[str, ...] = ()
    children: Mapping[str, _Shape] = field(default_factory=dict)
    has_text: bool = False
    is_open: bool = False


_OPEN = _Shape(is_open=True, has_text=True)
_TEXT = _Shape(("unit", "placement"), has_text=True)
_MODEL = _Shape(("type", "name", "heads", "primary", "ram", "vram", "vgamem"))
_PLACE = {"address": _OPEN}
_TARGETS = _Shape(("type", "port", "name", "chassis", "chassisNr"), {"model": _MODEL, "address": _OPEN})
_LINE = _Shape(("type",), {"target": _TARGETS, **_PLACE})
_DEVICES: Mapping[str, _Shape] = {
    "disk": _Shape(
        ("device",), {"target": _Shape(("dev", "bus")), "boot": _Shape(("order",)), "readonly": _Shape(), **_PLACE}
    ),
    "interface": _Shape(
        (), {"model": _MODEL, "boot": _Shape(("order",)), "mtu": _Shape(("size",)), "mac": _Shape(), **_PLACE}
    ),
    "controller": _Shape(("type", "index", "model", "ports"), {"model": _MODEL, "target": _TARGETS, **_PLACE}),
    "serial": _LINE,
    "console": _LINE,
    "channel": _LINE,
    "input": _Shape(("type", "bus"), _PLACE),
    "graphics": _Shape(("type", "keymap")),
    "video": _Shape((), {"model": _MODEL, **_PLACE}),
    "sound": _Shape(("model",), _PLACE),
    "memballoon": _Shape(("model",), _PLACE),
    "rng": _Shape(("model",), {"backend": _Shape(("model",), has_text=True), "rate": _OPEN, **_PLACE}),
    "watchdog": _Shape(("model", "action"), _PLACE),
    "panic": _Shape(("model",), _PLACE),
    "vsock": _Shape(("model",), _PLACE),
}
_DOMAIN = _Shape(
    (),
    {
        "name": _TEXT,
        "uuid": _TEXT,
        "genid": _TEXT,
        "memory": _TEXT,
        "currentMemory": _TEXT,
        "vcpu": _TEXT,
        "os": _Shape(
            ("firmware",),
            {
                "type": _Shape(("arch", "machine"), has_text=True),
                "boot": _Shape(("dev",)),
                "loader": _Shape(("readonly", "secure", "type", "format"), has_text=True),
                "bootmenu": _Shape(("enable", "timeout")),
            },
        ),
        "features": _OPEN,
        "cpu": _OPEN,
        "clock": _OPEN,
        "on_poweroff": _TEXT,
        "on_reboot": _TEXT,
        "on_crash": _TEXT,
        "pm": _OPEN,
        "devices": _Shape((), _DEVICES),
    },
)
_EXPECTED = frozenset(
    [
        *("alias", "audio", "auth", "backingStore", "cid", "description", "driver", "emulator", "link", "listen"),
        *("log", "metadata", "mirror", "nvram", "protocol", "seclabel", "serial", "smbios", "source", "sysinfo"),
        *("title", "wwn"),
    ]
)
"""Parts that every machine has, and that libvirt or `clone_xml` recreates. These parts are left out without a note."""


@dataclass(frozen=True)
class RestoredDomain:
    """The XML of a restored machine, and texts about parts of the original machine that it lacks."""

    xml: str
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class HostBoot:
    """Files of this host from which a machine boots.

    The administrator of this host chooses the files; a repository cannot choose them.

    If there is no `initrd`, it is None; if there is no `cmdline`, it is "".
    """

    kernel: str
    initrd: str | None = None
    cmdline: str = ""


_HOST_BOOT = ("kernel", "initrd", "cmdline")


@dataclass(frozen=True)
class RestoredIdentity:
    """The parts of a restored machine that differ from the original. The field `disks` maps disk targets to devices.

    The dataset above the zvols is `dataset`. If `boot` is None, the machine boots from its disks and its firmware. If
    `memory` (bytes) is None, the machine has as much memory as the original.
    """

    name: str
    uuid: str
    generation: str
    dataset: str
    restore_id: str
    disks: Mapping[str, str]
    boot: HostBoot | None = None
    memory: int | None = None


def restored(text: str, identity: RestoredIdentity, network: str) -> RestoredDomain:
    """Return the domain with this identity.

    The interfaces of the machine get new addresses and are connected to `network`. Their links are down.

    Raises DamagedError if the text is not a domain.
    """
    safe, left_out = _safe(text)
    xml = clone_xml(
        safe,
        DomainIdentity(
            name=identity.name,
            uuid=identity.uuid,
            generation=identity.generation,
            dataset=identity.dataset,
            disks=identity.disks,
            network=CloneNetwork("network", network),
            serial_log=None,
            memory=identity.memory,
        ),
    )
    root = root_of(xml)
    if identity.boot is not None:
        _boot_from_host(root, identity.boot)
        left_out = tuple(part for part in left_out if not part.startswith(tuple(f"os/{tag}" for tag in _HOST_BOOT)))
    # Remove a mark of a cloned machine, because with it the reaper would remove the domain.
    for metadata in root.findall("metadata"):
        metadata.clear()
        ElementTree.SubElement(metadata, _RESTORED, {"restore": identity.restore_id, "uuid": identity.uuid})
    for interface in root.iterfind("devices/interface"):
        ElementTree.SubElement(interface, "link", {"state": "down"})
    ElementTree.indent(root)
    return RestoredDomain(ElementTree.tostring(root, encoding="unicode") + "\n", left_out)


def _boot_from_host(root: ElementTree.Element, boot: HostBoot) -> None:
    """Make the machine boot from the given files.

    The XML contains no `_HOST_BOOT` elements, because `_DOMAIN` does not keep them.
    """
    system = root.find("os")
    if system is None:
        return
    texts = {"kernel": boot.kernel, "initrd": boot.initrd, "cmdline": boot.cmdline}
    for tag in _HOST_BOOT:
        if texts[tag]:
            ElementTree.SubElement(system, tag).text = texts[tag]


def is_of_restore(text: str, restore_id: str) -> bool:
    """Return whether the restore with this id defined the domain in the text.

    The result is False for a copy of the restored domain, because a copy has a different UUID.
    """
    mark = root_of(text).find(f"metadata/{_RESTORED}")
    return mark is not None and mark.get("restore") == restore_id and mark.get("uuid") == parse(text).uuid


def _safe(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the XML with only the parts that this module lists, and a list of the parts that were left out."""
    root, left_out = root_of(text), list[str]()
    kind = root.get("type")
    safe = _kept_element(root, _DOMAIN, left_out, "")
    safe.set("type", kind if kind in ("kvm", "qemu", "test") else "kvm")
    if safe.find("name") is None:
        ElementTree.SubElement(safe, "name")
    for loader in safe.findall("os/loader"):
        # Every other machine uses the same firmware file of the host, so the guest must not write it.
        loader.set("readonly", "yes")
        if loader.get("type") == "pflash" and (system := safe.find("os")) is not None:
            # The element is empty, because libvirt creates a new file from the firmware's template.
            ElementTree.SubElement(system, "nvram")
    for disk in safe.iterfind("devices/disk"):
        disk.set("type", "file")
    safe.extend(_icount(root))
    return ElementTree.tostring(safe, encoding="unicode"), tuple(sorted(set(left_out)))


def _kept_element(element: ElementTree.Element, shape: _Shape, left_out: list[str], path: str) -> ElementTree.Element:
    kept = ElementTree.Element(element.tag)
    for name, value in element.attrib.items():
        if (shape.is_open or name in shape.attributes) and _PLAIN.fullmatch(name) and _PLAIN.fullmatch(value):
            kept.set(name, value)
    text = (element.text or "").strip()
    if shape.has_text and text and (_PLAIN.fullmatch(text) or TRUSTED.fullmatch(text)):
        kept.text = text
    for child in element:
        if child.tag in (QEMU_COMMAND_LINE, "metadata"):
            continue
        inner = _OPEN if shape.is_open else shape.children.get(child.tag)
        place = f"{path}{_short(child.tag)}"
        if inner is None or not _PLAIN.fullmatch(child.tag) or _is_foreign(child):
            if child.tag not in _EXPECTED:
                left_out.append(_element_label(place, child))
            continue
        kept.append(_kept_element(child, inner, left_out, f"{place}/"))
    return kept


def _is_foreign(element: ElementTree.Element) -> bool:
    """Return whether the element depends on an untrusted object of the host."""
    text = (element.text or "").strip()
    if element.tag == "disk":
        return element.get("device", "disk") not in ("disk", "cdrom", "floppy")
    if element.tag == "loader":
        return not TRUSTED.fullmatch(text)
    if element.tag == "rng":
        backend = (element.findtext("backend") or "").strip()
        return bool(backend) and not TRUSTED.fullmatch(backend)
    if element.tag == "input":
        return element.get("type") not in ("tablet", "mouse", "keyboard")
    if element.tag == "graphics":
        return element.get("type") not in ("vnc", "spice")
    if element.tag == "channel":
        return element.get("type") not in ("unix", "spicevmc")
    return False


def _short(tag: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "?", tag.rpartition("}")[2])[:40]


def _element_label(place: str, element: ElementTree.Element) -> str:
    text = (element.text or "").strip()
    return f"{place} {text[:80]}" if text and text.isprintable() else place


def _icount(root: ElementTree.Element) -> list[ElementTree.Element]:
    """Return the domain's QEMU option `-icount` as XML; empty if the domain has no valid `-icount` option.

    All other QEMU options of the domain are dropped, because they may be harmful.
    """
    words = [word.get("value", "") for word in root.iterfind(f"{QEMU_COMMAND_LINE}/{QEMU_ARGUMENT}")]
    for option, value in zip(words[::2], words[1::2], strict=False):
        if option == "-icount" and _ICOUNT.fullmatch(value):
            line = ElementTree.Element(QEMU_COMMAND_LINE)
            for word in (option, value):
                ElementTree.SubElement(line, QEMU_ARGUMENT, {"value": word})
            return [line]
    return []
