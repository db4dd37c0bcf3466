"""Settings of an instance, except its datasets: control of the server, objectives, and virtual machine."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from zsnapdb.base.quantities import Seconds, Size
from zsnapdb.config.services import AbsolutePath, CommandWords, ConfigSection

_Words = Annotated[CommandWords, Field(min_length=1)]


class ControlSettings(ConfigSection):
    """How the server is stopped and started: with its systemd unit, or with two configured commands.

    By default, zsnapdb uses the unit of the running server. The setting `timeout` limits each stop and each start. The
    setting `server_id_file` is an option file that the server reads and only zsnapdb writes. In this file, zsnapdb sets
    a new server_id for MariaDB.
    """

    unit: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9:_.@-]{0,200}$")] | None = None
    stop: _Words | None = None
    start: _Words | None = None
    timeout: Annotated[Seconds, Field(gt=0, le=86400)] = 900.0
    server_id_file: AbsolutePath | None = None

    @field_validator("server_id_file")
    @classmethod
    def _absolute(cls, file: Path | None) -> Path | None:
        if file is not None and (".." in file.parts or file.suffix != ".cnf"):
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
    """The objectives of an instance. An omitted objective is not checked.

    Four objectives limit an age. `rpo`: age of the newest restorable point. `backup_age`: age of the newest restorable
    backup. `archive_lag`: age of the binlog archive's end. `drill_age`: age of the newest passed drill. `verify_age`
    and `deep_verify_age` limit the time since the last check, for the backup whose last check is the oldest. `window`:
    the period before now in which every point must be restorable. `copies`: maximum age of the newest restorable point
    in each repository. `immutable_for`: minimum time for which the store must protect a backup from removal, counted
    from its creation. `restore_time`: maximum duration of a restore, estimated from drills. `warn_at`: the fraction of
    a limit at which a warning starts.
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
    """The kernel of a machine that boots from files on this host, not from its own disks (direct kernel boot).

    Kernel paths in a repository are not trusted. A restored machine uses only the files that are set here.
    """

    kernel: _LocalFile
    initrd: _LocalFile | None = None
    cmdline: Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f-\x9f]*$", max_length=2000)] = ""


class VmSourceSettings(ConfigSection):
    """A libvirt domain as the source of backups, and the minimum grade (consistency level) of its backups.

    The setting `freeze_deadline` is the maximum time in seconds for which the guest's file systems stay frozen; with 0,
    they are never frozen. In a drill, the guest agent runs the database client with the command line `client`. None
    means the client of the server's family, as root through the socket. The setting `drill_memory` is the machine's
    memory in a drill, in bytes; None means as much as the original.
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
    """A silenced rule: its name, the last day of silence (`until`, UTC), and the reason.

    If `instance` is None, the rule is silenced for all instances.
    """

    rule: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,63}$")]
    reason: Annotated[str, Field(min_length=8, max_length=500)]
    until: date
    instance: str | None = None


class DoctorSettings(ConfigSection):
    """Settings of `zsnapdb doctor`: the rules that it does not report."""

    silenced: tuple[SilencedRule, ...] = ()
