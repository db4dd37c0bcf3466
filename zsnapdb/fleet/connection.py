"""The connection to the engine, with Temporal's own client library."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

from temporalio.api.failure.v1 import Failure
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DefaultFailureConverter, PayloadConverter
from temporalio.exceptions import ApplicationError, FailureError
from temporalio.runtime import Runtime, TelemetryConfig
from temporalio.service import RPCError, RPCStatusCode, TLSConfig

from zsnapdb.base.errors import ServerError, UnreachableError
from zsnapdb.base.files import read_text, secret_in
from zsnapdb.config.services import EngineSettings

_PATIENCE = 20.0


class SilentFailures(DefaultFailureConverter):
    """Converts errors for the engine. Only errors that were created for the engine are sent in full.

    For other errors, only the class is sent. No stack trace is sent. The text of an unexpected error may quote facts
    that only this host knows.
    """

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        """Return the description of the error for the engine."""
        told = exception if isinstance(exception, FailureError) else ApplicationError(type(exception).__name__)
        told.__cause__ = told.__context__ = None
        super().to_failure(told, payload_converter, failure)
        failure.stack_trace = ""


CONVERTER = replace(pydantic_data_converter, failure_converter_class=SilentFailures)


@functools.cache
def _runtime() -> Runtime:
    """Return the client's runtime. The client sends no facts about this machine or its load to the engine."""
    wanted: dict[str, Any] = {"worker_heartbeat_interval": None, "disable_environment_info": True}
    # Older versions of the client library lack these options, and send no such facts.
    known = inspect.signature(Runtime).parameters
    return Runtime(telemetry=TelemetryConfig(), **{name: value for name, value in wanted.items() if name in known})


async def connect(settings: EngineSettings, identity: str) -> Client:
    """Connect to the engine. The engine shows this client under the name `identity`.

    Raises:
        UnreachableError: the engine does not answer
        ConfigError: a file cannot be read
    """
    tls = _tls(settings)
    try:
        connecting = Client.connect(
            settings.server,
            namespace=settings.namespace,
            data_converter=CONVERTER,
            tls=tls,
            identity=identity,
            runtime=_runtime(),
        )
        return await asyncio.wait_for(connecting, _PATIENCE)
    except (RuntimeError, RPCError, TimeoutError) as error:
        why = f"no answer in {_PATIENCE:.0f} s" if isinstance(error, TimeoutError) else _why(error, settings)
        raise UnreachableError(
            f"the engine of the fleet at {settings.server} cannot be reached: {why}",
            hint="check that it runs, its address, and the certificates",
        ) from error


_REASONS = (
    ("ConnectionRefused", "nobody listens there"),
    ("UnknownIssuer", "its certificate is of another authority than that of `ca`"),
    ("NotValidForName", "its certificate has another name than `server_name`"),
    ("Expired", "its certificate has expired"),
)
"""The meanings of the client's error texts, which come from Rust libraries (rustls, std::io)."""
_BROKEN_OFF = "error after connection"


def _why(error: BaseException, settings: EngineSettings) -> str:
    """Return the reason why the connection failed, in plain words.

    If the reason is unknown, return the client's text.
    """
    said = first_line(error)
    for word, reason in _REASONS:
        if word in said:
            return reason
    if _BROKEN_OFF not in said or "transport::Error" not in said:
        return said
    # In TLS 1.3, a server rejects a certificate only after the client has sent it.
    if settings.certificate is None:
        return "it ended the connection: it may ask for a certificate, and none is configured"
    return f"it ended the connection: it may not believe the certificate {settings.certificate}"


def _tls(settings: EngineSettings) -> TLSConfig | bool:
    if settings.certificate is None or settings.key is None:
        return False
    mend = "name a file that this account can read"
    certificate = read_text(settings.certificate, "the certificate for the fleet", mend)
    ca = read_text(settings.ca, "the authority of the fleet", mend) if settings.ca is not None else None
    return TLSConfig(
        server_root_ca_cert=ca.encode() if ca is not None else None,
        domain=settings.server_name,
        client_cert=certificate.encode(),
        client_private_key=secret_in(settings.key, "the key for the fleet", mend),
    )


def first_line(error: BaseException) -> str:
    """Return the first line of a client's error, with at most 300 characters."""
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def refusal_error(error: RPCError, doing: str) -> ServerError | UnreachableError:
    """Return the error for a request that the engine refused or did not answer in time."""
    if error.status in (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.UNAVAILABLE):
        return UnreachableError(
            f"{doing}: the engine of the fleet did not answer: {first_line(error)}",
            hint="try again; the engine may be busy",
        )
    return ServerError(
        f"{doing}: the engine of the fleet answers {error.status.name}: {first_line(error)}",
        hint="check the rights of this certificate, and that `zsnapdb fleet control` runs",
    )


def machine(
    own: Path = Path("/etc/machine-id"),
    firmware: Path = Path("/sys/class/dmi/id/product_uuid"),
    boot: Path = Path("/proc/sys/kernel/random/boot_id"),
) -> str:
    """Return an anonymous id of this machine: 16 hexadecimal digits.

    A copy of a virtual machine has the same id file but a different firmware id. Programs should not publish the
    machine id itself (machine-id(5)).
    """
    known = [text for file in (own, firmware) if (text := _content(file))] or [_content(boot)]
    return hashlib.blake2b("\n".join(known).encode(), key=b"zsnapdb fleet", digest_size=8).hexdigest()


def _content(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def identity_of(host: str, machine_id: str) -> str:
    """Return the name of a worker in the engine, from the host and the machine."""
    return f"{host}/{machine_id}"
