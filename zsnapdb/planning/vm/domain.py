"""Reads the XML of a libvirt domain (https://libvirt.org/formatdomain.html) into a model. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from xml.etree import ElementTree

from zsnapdb.base.errors import DamagedError
from zsnapdb.base.patterns import is_line

NAMESPACE = "https://github.com/zsnapdb/vm/1"
"""The namespace of zsnapdb's element in the metadata of a domain."""
_MARK = f"{{{NAMESPACE}}}vm"
_QEMU = "http://libvirt.org/schemas/domain/qemu/1.0"
QEMU_COMMAND_LINE = f"{{{_QEMU}}}commandline"
QEMU_ARGUMENT = f"{{{_QEMU}}}arg"
_LONGEST = 1 << 20
_DEEPEST = 32
"""The maximum number of nested levels of elements. Domains of libvirt have fewer than ten levels."""
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_AGENT_CHANNEL = "org.qemu.guest_agent.0"

ElementTree.register_namespace("zsnapdb", NAMESPACE)
ElementTree.register_namespace("qemu", _QEMU)


@dataclass(frozen=True)
class DomainMark:
    """The element of zsnapdb in a domain's metadata: the machine's name, its UUID, and the dataset of its anchor."""

    name: str
    uuid: str
    dataset: str


@dataclass(frozen=True)
class DomainDisk:
    """A disk of a domain. The field `kind` is its type (block, file, …), and `source` is its device or file, if any.

    The field `cache` is the cache mode of the disk's driver, or "" if the XML contains none.
    """

    target: str
    kind: str
    device: str
    source: str | None
    is_shared: bool
    cache: str = ""

    @property
    def is_volume(self) -> bool:
        """Whether the machine writes to the disk, which is true of all disks except CDs and floppies."""
        return self.device == "disk"


@dataclass(frozen=True)
class Domain:
    """The parts of a domain that zsnapdb reads. If the XML contains no UUID, `uuid` is ""."""

    name: str
    uuid: str
    disks: tuple[DomainDisk, ...]
    macs: tuple[str, ...]
    nvram: str | None
    has_agent: bool
    mark: DomainMark | None

    @property
    def volumes(self) -> tuple[DomainDisk, ...]:
        """The disks to which the machine writes."""
        return tuple(disk for disk in self.disks if disk.is_volume)

    def is_marked(self, name: str, uuid: str, dataset: str) -> bool:
        """Whether this is the domain that zsnapdb defined for the machine with this anchor.

        For a copy of the domain the result is False. virt-clone copies the mark with the metadata, but the copy's UUID
        differs from the UUID in the mark.
        """
        return self.mark == DomainMark(name, uuid, dataset) and self.uuid == uuid


def root_of(text: str) -> ElementTree.Element:
    """Return the root element of a domain's XML. Raises DamagedError if the text is not the XML of a domain.

    The function refuses entities, because libvirt writes none. It also refuses elements that are nested too deeply for
    recursion.
    """
    if len(text) > _LONGEST or "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise DamagedError("the XML of the domain is too long, or declares entities", hint="see `virsh dumpxml`")
    try:
        root = ElementTree.fromstring(text)  # noqa: S314
    except ElementTree.ParseError as error:
        raise DamagedError(f"the XML of the domain cannot be read: {error}", hint="see `virsh dumpxml`") from error
    if _depth(root) > _DEEPEST:
        raise DamagedError(f"the XML of the domain has more than {_DEEPEST} levels", hint="see `virsh dumpxml`")
    if root.tag != "domain":
        raise DamagedError(f"the XML describes a {root.tag}, not a domain", hint="give the output of `virsh dumpxml`")
    return root


def _depth(root: ElementTree.Element) -> int:
    """Return the number of nested levels. Counting stops one level above the limit."""
    depth, level = 0, [root]
    while level and depth <= _DEEPEST:
        depth, level = depth + 1, [child for element in level for child in element]
    return depth


def parse(text: str) -> Domain:
    """Return the domain that the XML describes. Raises DamagedError if a part that zsnapdb needs is unreadable."""
    root = root_of(text)
    name = (root.findtext("name") or "").strip()
    uuid = (root.findtext("uuid") or "").strip().lower()
    if not name or not is_line(name) or (uuid and not _UUID.fullmatch(uuid)):
        raise DamagedError("the XML of the domain has no name, or a wrong UUID", hint="see `virsh dumpxml`")
    channels = [target.get("name") for target in root.iterfind("devices/channel/target")]
    return Domain(
        name=name,
        uuid=uuid,
        disks=tuple(_disk(disk) for disk in root.iterfind("devices/disk")),
        macs=tuple(mac.get("address", "").lower() for mac in root.iterfind("devices/interface/mac")),
        nvram=(root.findtext("os/nvram") or "").strip() or None,
        has_agent=_AGENT_CHANNEL in channels,
        mark=_mark(root),
    )


def _disk(element: ElementTree.Element) -> DomainDisk:
    target = element.find("target")
    name = target.get("dev", "") if target is not None else ""
    if not re.fullmatch(r"[a-z]{1,8}", name):
        raise DamagedError(f"a disk of the domain has the target {name!r}", hint="a target is like vda or sda")
    source, driver = element.find("source"), element.find("driver")
    place = None if source is None else source.get("dev") or source.get("file") or source.get("name")
    return DomainDisk(
        target=name,
        kind=element.get("type", ""),
        device=element.get("device", "disk"),
        source=place if place is None or is_line(place) else "(not a line)",
        is_shared=element.find("shareable") is not None,
        cache=driver.get("cache", "") if driver is not None else "",
    )


def _mark(root: ElementTree.Element) -> DomainMark | None:
    element = root.find(f"metadata/{_MARK}")
    if element is None:
        return None
    return DomainMark(element.get("name", ""), element.get("uuid", ""), element.get("dataset", ""))


def mark_element(mark: DomainMark) -> ElementTree.Element:
    """Return the metadata for a domain, containing only the element of zsnapdb."""
    metadata = ElementTree.Element("metadata")
    ElementTree.SubElement(metadata, _MARK, {"name": mark.name, "uuid": mark.uuid, "dataset": mark.dataset})
    return metadata
