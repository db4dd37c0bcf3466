"""What a manifest says about a virtual machine that was backed up."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, StringConstraints

from zsnapdb.base.errors import DamagedError
from zsnapdb.base.model import Flavour
from zsnapdb.base.patterns import Count, FileName, GtidText, MachineName, Seconds, ServerUuid, ShortLine, Words
from zsnapdb.planning.vm.grade import Grade
from zsnapdb.repository.part import Part


def _domain_xml(text: str) -> str:
    # Most manifests describe servers.
    from zsnapdb.planning.vm.domain import parse

    try:
        parse(text)
    except DamagedError as error:
        raise ValueError(error.message) from error
    return text


DomainXml = Annotated[str, StringConstraints(max_length=1 << 18), AfterValidator(_domain_xml)]
"""The XML of a libvirt domain. Nothing is defined from it as it is: see `planning/vm/restored_domain.py`."""


class FreezePart(Part):
    """A freeze by the guest agent: how many file systems, for how many milliseconds, and what the agent listed."""

    count: Count
    held_ms: Seconds
    mount_points: tuple[ShortLine, ...] = ()
    problem: Words = ""


class BoundPart(Part):
    """What a server had published at a moment: binlog file and offset, GTIDs. None: it has none."""

    binlog_file: FileName | None
    binlog_offset: Count | None
    gtids: GtidText | None


class ServerInsidePart(Part):
    """A server inside the machine that was locked around the snapshot, for `held_ms` milliseconds.

    Its position in the snapshot lies between `before` and `after`. `after` None: the lock was lost.
    """

    flavour: Flavour
    version: ShortLine
    server_uuid: ServerUuid | None
    server_id: Count
    lock: ShortLine
    lock_reason: Words
    held_ms: Seconds
    before: BoundPart
    after: BoundPart | None = None


class MachineSourcePart(Part):
    """The source of a backup of a virtual machine: its libvirt domain, and how consistent its disks are.

    `xml` is the description that the domain's next start would have used. `freeze` is None if nothing was frozen.
    """

    kind: Literal["vm"] = "vm"
    domain: MachineName
    uuid: ServerUuid
    grade: Grade
    reason: Words
    freeze: FreezePart | None = None
    server: ServerInsidePart | None = None
    xml: DomainXml | None = None

    def summary(self) -> MachineSourcePart:
        """Return the source without its XML, which is long."""
        return self.model_copy(update={"xml": None})
