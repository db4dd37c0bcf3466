"""The settings of an instance beside its datasets: how its server is run, its objectives, its machine."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from zsnapdb.base.quantities import Seconds, Size
from zsnapdb.config.section import ConfigSection

_Words = Annotated[
    tuple[str, ...],
    BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
    Field(min_length=1),
]


class ControlSettings(ConfigSection):
    """How the server is stopped and started: by its systemd unit, or by two commands of the site.

    With none of them the unit of the running server is used. `timeout`: a stop and a start may each take this long.
    `server_id_file` is an option file that the server reads and zsnapdb alone writes: MariaDB gets its new server_id
    there.
    """

    unit: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9:_.@-]{0,200}$")] | None = None
    stop: _Words | None = None
    start: _Words | None = None
    timeout: Annotated[Seconds, Field(gt=0, le=86400)] = 900.0
    server_id_file: Path | None = None

    @field_validator("server_id_file")
    @classmethod
    def _absolute(cls, file: Path | None) -> Path | None:
        if file is not None and (not file.is_absolute() or ".." in file.parts or file.suffix != ".cnf"):
            raise ValueError("name a file by its whole path; its name ends in .cnf")
        return file

    @model_validator(mode="after")
    def _one_way(self) -> ControlSettings:
        if (self.stop is None) != (self.start is None):
            raise ValueError("give stop and start together")
        if self.unit is not None and self.stop is not None:
            raise ValueError("give either unit, or stop and start")
        return self


_Time = Annotated[Seconds, Field(gt=0, le=100 * 365 * 86400.0)] | None


class ObjectiveSettings(ConfigSection):
    """The objectives of an instance. An objective that is left out is not judged.

    Ages are of the newest restorable point (`rpo`), the newest restorable backup, the end of the binlog archive
    (`archive_lag`), the newest drill that passed, and the last check of the backup that was checked longest ago.
    `window`: every moment this far back can be restored. `copies`: by repository, the greatest age of the newest
    restorable point there. `immutable_for`: the store keeps a backup from removal for at least this long after it was
    made. `restore_time`: the longest restore, estimated from drills. `warn_at`: the part of a limit from which on there
    is a warning.
    """

    rpo: _Time = None
    backup_age: _Time = None
    archive_lag: _Time = None
    drill_age: _Time = None
    verify_age: _Time = None
    deep_verify_age: _Time = None
    window: _Time = None
    copies: dict[str, Annotated[Seconds, Field(gt=0, le=100 * 365 * 86400.0)]] = Field(default_factory=dict)
    immutable_for: _Time = None
    restore_time: _Time = None
    warn_at: Annotated[float, Field(gt=0, le=1)] = 0.8


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


class SilencedRule(ConfigSection):
    """A rule that is silent up to and including the day `until` (UTC), and why. `instance` None: for all instances."""

    rule: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,63}$")]
    reason: Annotated[str, Field(min_length=8, max_length=500)]
    until: date
    instance: str | None = None


class DoctorSettings(ConfigSection):
    """What `zsnapdb doctor` leaves out."""

    silenced: tuple[SilencedRule, ...] = ()
