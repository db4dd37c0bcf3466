"""The settings of an instance whose disks are those of a virtual machine."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from zsnapdb.quantities import Seconds


class VmSourceSettings(BaseModel):
    """A libvirt domain as the source of backups, and the lowest grade of consistency that its backups may have.

    `freeze_deadline`: the longest time, in seconds, that the file systems inside the guest stay frozen. 0: never
    frozen.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, defer_build=True)

    domain: Annotated[str, Field(pattern=r"^[^/\x00-\x1f\x7f-\x9f]{1,200}$")]
    minimum_grade: Literal["crash", "frozen", "quiesced"] = "crash"
    freeze_deadline: Annotated[Seconds, Field(ge=0, le=60)] = 5.0

    @model_validator(mode="after")
    def _may_freeze(self) -> VmSourceSettings:
        if self.minimum_grade == "frozen" and not self.freeze_deadline:
            raise ValueError('minimum_grade = "frozen" needs a freeze; set freeze_deadline to more than 0s')
        return self
