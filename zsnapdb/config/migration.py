"""The settings of the check of a migration."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from zsnapdb.base.quantities import Seconds
from zsnapdb.config.section import ConfigSection

MigrationCommand = Annotated[
    tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)
]


class MigrationSettings(ConfigSection):
    """The migration of the site, and what of it is too much.

    `command` runs it, in the folder where `zsnapdb migration-check` is started, for at most `timeout` seconds. It is a
    problem if it takes more than `longest`, if a statement of others on a table waits more than `longest_read_wait` or
    `longest_write_wait` seconds, or, with `repeatable`, if a second run fails or changes the schema again. None: no
    limit.
    """

    command: MigrationCommand = ()
    timeout: Annotated[Seconds, Field(gt=0, le=7 * 86400.0)] = 3600.0
    longest: Annotated[Seconds, Field(gt=0)] | None = None
    longest_read_wait: Annotated[Seconds, Field(gt=0)] | None = 1.0
    longest_write_wait: Annotated[Seconds, Field(gt=0)] | None = 1.0
    repeatable: bool = False
