"""Why a notification did not arrive."""

from __future__ import annotations


class DeliveryFailure(Exception):
    """A notification did not arrive. `may_work_later`: whether another attempt makes sense."""

    def __init__(self, reason: str, *, may_work_later: bool) -> None:
        super().__init__(reason)
        self.may_work_later = may_work_later
