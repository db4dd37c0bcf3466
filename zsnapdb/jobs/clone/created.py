"""A clone that somebody has now: made for them, or handed out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import SecretStr

from zsnapdb.jobs.clone import credentials
from zsnapdb.jobs.clone.clone_info import CloneInfo
from zsnapdb.planning.clone.contract import ACCOUNT

if TYPE_CHECKING:
    from zsnapdb.jobs.clone.masking import MaskingReport
    from zsnapdb.planning.clone.masking import MaskingChoice


@dataclass(frozen=True)
class CreateDurations:
    """How long the parts of `create` took, in seconds.

    `source`: find or make the snapshots. `clone`: clone and mark the datasets. `identity`: remove the identity of the
    source from the files. `start`: start and recovery of the server. Masking is in none of them.
    """

    source: float
    clone: float
    identity: float
    start: float


@dataclass(frozen=True)
class Created:
    """A new clone. `password` is None if its server was not started yet.

    `masking` is what masking did now, to the clone or to the set that it is made of (None: nothing), `masked` how the
    clone is masked. `is_of_pool`: it waited in the pool of its instance, and was not made now; then it was masked then.
    """

    info: CloneInfo
    password: SecretStr | None
    seconds: CreateDurations
    masking: MaskingReport | None = None
    masked: MaskingChoice | None = None
    is_of_pool: bool = False

    @property
    def login(self) -> credentials.Login | None:
        """How a client reaches the clone; None if its server was not started yet."""
        if self.password is None:
            return None
        return credentials.Login(
            self.info.host, self.info.client_port, self.info.process.socket, ACCOUNT, self.password
        )
