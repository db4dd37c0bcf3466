"""The settings of an instance whose disks are those of a virtual machine."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from zsnapdb.base.quantities import Seconds, Size
from zsnapdb.config.section import ConfigSection

_Argument = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f-\x9f]+$", max_length=1000)]
_LocalFile = Annotated[str, Field(pattern=r"^/[^\x00-\x1f\x7f-\x9f]+$", max_length=4095)]


class HostBootSettings(ConfigSection):
    """The kernel of a machine that boots from files of this host, and not from its disks (direct kernel boot).

    What a repository says of such files is not believed, so a restored machine has those named here, or none.
    """

    kernel: _LocalFile
    initrd: _LocalFile | None = None
    cmdline: Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f-\x9f]*$", max_length=2000)] = ""


class VmSourceSettings(ConfigSection):
    """A libvirt domain as the source of backups, and the lowest grade of consistency that its backups may have.

    `freeze_deadline`: the longest time, in seconds, that the file systems inside the guest stay frozen. 0: never
    frozen. `client`: the command line of the client of the server inside, which the guest agent runs in a drill (None:
    that of the server's family, by the socket as root). `drill_memory`: the bytes of memory that a drill gives the
    machine (None: as much as the machine has).
    """

    domain: Annotated[str, Field(pattern=r"^[^/\x00-\x1f\x7f-\x9f]+$", max_length=200)]
    minimum_grade: Literal["crash", "frozen", "quiesced"] = "crash"
    freeze_deadline: Annotated[Seconds, Field(ge=0, le=60)] = 5.0
    boot: HostBootSettings | None = None
    client: Annotated[tuple[_Argument, ...], Field(min_length=1)] | None = None
    drill_memory: Annotated[Size, Field(ge=1 << 20)] | None = None

    @model_validator(mode="after")
    def _may_freeze(self) -> VmSourceSettings:
        if self.minimum_grade == "frozen" and not self.freeze_deadline:
            raise ValueError('minimum_grade = "frozen" needs a freeze; set freeze_deadline to more than 0s')
        return self
