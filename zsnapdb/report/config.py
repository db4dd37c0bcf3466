"""The instances and repositories of a configuration file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zsnapdb.config.settings import Settings
from zsnapdb.documents.setup import ConfigurationDocument
from zsnapdb.report.view import View


@dataclass(frozen=True)
class ConfigurationView(View):
    """A valid configuration file: its instances and repositories."""

    settings: Settings
    kind: ClassVar[str] = "configuration"
    document_class = ConfigurationDocument
    read_from = "settings"

    def text(self) -> str:
        lines = [
            f"instance {name}: {own.user} at {own.socket or own.host}, to repository {own.repository}"
            for name, own in self.settings.instance.items()
        ]
        return "\n".join(["the configuration is well-formed", *lines, *self.notes()])

    def notes(self) -> list[str]:
        """Return a line for each repository that has keys of S3 where they do not belong."""
        notes = []
        for name, own in self.settings.repository.items():
            if own.idle_keys:
                notes.append(f'note: repository "{name}" is not in S3: there {", ".join(own.idle_keys)} has no effect')
            elif own.flat_keys:
                place = f"[repository.{name}.s3]"
                notes.append(f'note: {", ".join(own.flat_keys)} of repository "{name}" belong in the table {place}')
        return notes
