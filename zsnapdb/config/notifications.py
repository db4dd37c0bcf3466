"""Settings of notifications: targets and their events."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from zsnapdb.base.quantities import Seconds
from zsnapdb.config.services import HIDDEN, AbsolutePath, ConfigSection

_URL = r"^https?://[^\s/@]+(/\S*)?$"
_ADDRESS = r"^[A-Za-z0-9][A-Za-z0-9._%+=-]*@[A-Za-z0-9.-]+$"
_PROGRAM = r"^/"

Url = Annotated[str, Field(pattern=_URL, max_length=2000), HIDDEN]
"""An address that is secret, because anybody who knows it can send messages to it."""
Address = Annotated[str, Field(pattern=_ADDRESS, max_length=320)]
Program = Annotated[str, Field(pattern=_PROGRAM)]
TARGET_NAME = r"^[a-z0-9][a-z0-9_-]{0,31}$"


class NotifiedJob(StrEnum):
    """The commands whose start and end cause notifications. For pings, they include the check of all objectives."""

    BACKUP = "backup"
    SNAPSHOT = "snapshot"
    DRILL = "drill"
    VERIFY = "verify"
    PRUNE = "prune"
    COPY = "copy"
    REWIND = "rewind"
    OBJECTIVES = "objectives"


class NotificationEvent(StrEnum):
    """An event that causes a notification.

    A success after a problem is sent to the targets to which the problem was sent.
    """

    START = "start"
    SUCCESS = "success"
    FAILURE = "failure"
    BROKEN = "broken"
    MET = "met"
    TEST = "test"

    @property
    def is_problem(self) -> bool:
        return self in (NotificationEvent.FAILURE, NotificationEvent.BROKEN)

    @property
    def is_of_objective(self) -> bool:
        """Return whether the event is about an objective.

        The name alone does not show this: both a job and an objective are called `drill`.
        """
        return self in (NotificationEvent.BROKEN, NotificationEvent.MET)


class NotificationChannel(StrEnum):
    """The ways to deliver a message. `notify/notifier.py` contains a function for each channel."""

    PING = "ping"
    WEBHOOK = "webhook"
    EMAIL = "email"
    SCRIPT = "script"


class NotificationTarget(ConfigSection):
    """A target of notifications: exactly one of `ping`, `ping_file`, `webhook`, `webhook_file`, `email` and `script`.

    A ping target is for a single job (`of`), so that the success of one job cannot hide the failure of another. A
    continuing problem is reported again after the interval `repeat`. Without `instances`, the target gets events of all
    instances.
    """

    ping: Url | None = None
    ping_file: AbsolutePath | None = None
    of: NotifiedJob | None = None
    webhook: Url | None = None
    webhook_file: AbsolutePath | None = None
    secret_file: AbsolutePath | None = None
    email: tuple[Address, ...] = ()
    sender: Address | None = None
    sendmail: Program = "/usr/sbin/sendmail"
    script: Annotated[tuple[str, ...], Field(max_length=50)] = ()
    instances: tuple[str, ...] = ()
    events: tuple[NotificationEvent, ...] = (NotificationEvent.FAILURE, NotificationEvent.BROKEN)
    repeat: Annotated[Seconds, Field(ge=60, le=31 * 86400.0)] = 21600.0

    @property
    def channel(self) -> NotificationChannel:
        if self.ping is not None or self.ping_file is not None:
            return NotificationChannel.PING
        if self.email:
            return NotificationChannel.EMAIL
        return NotificationChannel.SCRIPT if self.script else NotificationChannel.WEBHOOK

    @property
    def is_ping(self) -> bool:
        return self.channel is NotificationChannel.PING

    @model_validator(mode="after")
    def _one_way(self) -> NotificationTarget:
        ways = (self.ping, self.ping_file, self.webhook, self.webhook_file, self.email or None, self.script or None)
        if sum(way is not None for way in ways) != 1:
            raise ValueError("give exactly one of ping, ping_file, webhook, webhook_file, email and script")
        if self.script and not self.script[0].startswith("/"):
            raise ValueError("script must begin with the absolute path of a program")
        if self.secret_file is not None and self.webhook is None and self.webhook_file is None:
            raise ValueError("secret_file needs a webhook")
        if self.is_ping != (self.of is not None):
            raise ValueError("`of` is required for a ping, and allowed only there: the name of a job, or objectives")
        if self.of is not None and self.of is not NotifiedJob.OBJECTIVES and len(self.instances) != 1:
            raise ValueError("a ping for a job needs exactly one instance: set instances = [NAME]")
        return self


class NotificationSettings(ConfigSection):
    """Targets by name, and time limits: `timeout` for one attempt, `budget` for all attempts of a command together."""

    to: dict[Annotated[str, Field(pattern=TARGET_NAME)], NotificationTarget] = Field(default_factory=dict)
    timeout: Annotated[Seconds, Field(ge=1, le=60)] = 10.0
    attempts: Annotated[int, Field(ge=1, le=10)] = 3
    budget: Annotated[Seconds, Field(ge=1, le=300)] = 30.0
    state: AbsolutePath = Path("/var/lib/zsnapdb/notifications")
