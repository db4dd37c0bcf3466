"""The objectives of an instance as a manifest has them, so that who reads a repository alone can judge them."""

from __future__ import annotations

from typing import Self

from pydantic import ConfigDict, model_validator

from zsnapdb.config.instance import ObjectiveSettings


class ObjectivesPart(ObjectiveSettings):
    """The objectives that were configured where a backup was made. Those that this zsnapdb does not know are ignored.

    There are none for copies: they name repositories of that host's configuration.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _without_copies(cls, read: object) -> object:
        return {key: value for key, value in read.items() if key != "copies"} if isinstance(read, dict) else read

    @classmethod
    def of(cls, settings: ObjectiveSettings) -> Self:
        """Return the objectives of a configuration, without those for copies."""
        return cls.model_validate(settings.model_dump())
