"""The base of all stored documents."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """A part of a stored document. Unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")
