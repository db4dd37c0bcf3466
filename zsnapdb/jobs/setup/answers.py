"""The file with the answers for a setup that nobody watches."""

from __future__ import annotations

import tomllib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from zsnapdb.base import text_files
from zsnapdb.base.errors import ConfigError
from zsnapdb.config.errors import every_error, explain
from zsnapdb.planning.setup.facts import SetupAnswers


class AnswersDocument(BaseModel):
    """The keys of the file: the options of `zsnapdb setup`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    repository: str
    instance: str = "main"
    socket: str | None = None
    pool: str | None = None
    credentials_file: str | None = None
    endpoint: str | None = None
    plain: bool = False
    signing: bool = True
    binary: str | None = None
    move: bool = False
    proof: bool = True
    notify: str | None = None


def read(file: Path) -> SetupAnswers:
    """Return the answers of a TOML file. ConfigError that names every key that is wrong."""
    hint = "`zsnapdb example setup-answers.toml` prints one"
    text = text_files.read_text(file, "the answers", hint)
    try:
        raw = tomllib.loads(text)
        document = AnswersDocument.model_validate(raw)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not valid TOML: {error}", hint=hint) from error
    except ValidationError:
        message, known = explain(every_error(raw, AnswersDocument), AnswersDocument)
        raise ConfigError(f"{file}: {message}", hint=known or hint) from None
    values = document.model_dump()
    return SetupAnswers(encrypt=not values.pop("plain"), sign=values.pop("signing"), **values)
