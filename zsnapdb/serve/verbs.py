"""The requests of the web process to the helper: one line of JSON that is parsed into exactly one of the verbs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Union, get_args

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from zsnapdb.base.errors import UsageError
from zsnapdb.serve.login_messages import LoginVerb
from zsnapdb.verbs.requests import VERBS, RoleVerb

MOST_BYTES = 64 * 1024
"""The longest request, in bytes."""
MOST_OF_BEARER = 8192
"""The longest bearer credential: id tokens with many claims have some thousand characters."""
BearerToken = Annotated[str, StringConstraints(pattern=rf"^[!-~]{{0,{MOST_OF_BEARER}}}$", strict=True)]
if TYPE_CHECKING:
    Verb = RoleVerb | LoginVerb
else:
    Verb = Annotated[Union[(*VERBS, *get_args(LoginVerb))], Field(discriminator="kind")]


class HelperRequest(BaseModel):
    """A verb, with the token as the web process received it."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    token: BearerToken
    verb: Verb

    def line(self) -> bytes:
        """Return the request as one line."""
        return self.model_dump_json(by_alias=True).encode() + b"\n"


_REQUEST: TypeAdapter[HelperRequest] = TypeAdapter(HelperRequest)


def parse(line: bytes) -> HelperRequest:
    """Return the request in a line. Raises UsageError, which repeats no value of it, if it is invalid."""
    try:
        return _REQUEST.validate_json(line)
    except ValidationError as error:
        raise UsageError(
            f"the request is not valid: {explained(error)}", hint="`GET /api/v1/openapi.json` says what is known"
        ) from None


def explained(error: ValidationError) -> str:
    """Return the invalid fields and their errors, without the given values."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{_place(one['loc'])}: {one['msg']}" for one in found[:5])


def _place(path: tuple[int | str, ...]) -> str:
    # The sender chose the name of an unknown field. It is shown shortened; an error escapes it.
    return ".".join(str(part)[:40] for part in path) or "the line"
