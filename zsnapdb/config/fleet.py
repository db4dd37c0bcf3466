"""Settings of `zsnapdb fleet` (fleet.toml): the repositories of the fleet, and default objectives."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator

from zsnapdb.base.files import read_text
from zsnapdb.base.patterns import INSTANCE, ShortLine
from zsnapdb.base.quantities import Seconds
from zsnapdb.config.errors import settings_in
from zsnapdb.config.instance import ObjectiveSettings
from zsnapdb.config.repository import RepositorySettings
from zsnapdb.config.services import AbsolutePath, ConfigSection

DEFAULT_PATH = Path("/etc/zsnapdb/fleet.toml")
VARIABLE = "ZSNAPDB_FLEET_CONFIG"
_EXAMPLE = "`zsnapdb example fleet.toml` prints an example"
HostName = Annotated[ShortLine, Field(min_length=1)]
RepositoryName = Annotated[str, Field(pattern=rf"^{INSTANCE}$")]


class FleetSettings(ConfigSection):
    """The repositories of a fleet. zsnapdb finds the instances by listing the repositories.

    The `objectives` apply to instances whose backups record no objectives. A host is red if no repository received data
    from it within `heard_within`. A host in `hosts` is also red if it has never stored anything. The local folder
    `cache` contains data that was already read. The number of concurrent requests is `readers`.
    """

    repository: Annotated[dict[RepositoryName, RepositorySettings], Field(min_length=1)]
    objectives: ObjectiveSettings = ObjectiveSettings.model_construct()
    hosts: tuple[HostName, ...] = ()
    heard_within: Annotated[Seconds, Field(gt=0, le=10 * 365 * 86400.0)] = 2 * 86400.0
    cache: AbsolutePath = Path("/var/cache/zsnapdb/fleet")
    readers: Annotated[int, Field(ge=1, le=256)] = 16

    @field_validator("repository")
    @classmethod
    def _only_read(cls, repositories: dict[str, RepositorySettings]) -> dict[str, RepositorySettings]:
        for name, settings in repositories.items():
            if settings.encryption.signing_key_file is not None:
                raise ValueError(
                    f"{name}: a fleet only reads its repositories; remove `signing_key_file` and set `signers`"
                )
        return repositories

    @field_validator("objectives")
    @classmethod
    def _of_one_repository(cls, objectives: ObjectiveSettings) -> ObjectiveSettings:
        if objectives.copies or objectives.immutable_for is not None:
            raise ValueError("the fleet view does not check copies and immutable_for; leave them out")
        return objectives


def parse(text: str, name: str) -> FleetSettings:
    """Return the settings in the TOML text.

    Raises ConfigError with all errors in the text. The message refers to the text as `name`.
    """
    return settings_in(text, name, FleetSettings, _EXAMPLE)


def load(path: Path | None = None) -> FleetSettings:
    """Return the settings of the file (default: $ZSNAPDB_FLEET_CONFIG, else /etc/zsnapdb/fleet.toml)."""
    chosen = path or Path(os.environ.get(VARIABLE, str(DEFAULT_PATH)))
    hint = "write one as `zsnapdb example fleet.toml` shows, or name another file with --config"
    return parse(read_text(chosen, "the configuration of the fleet", hint), str(chosen))
