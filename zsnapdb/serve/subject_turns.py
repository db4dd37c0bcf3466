"""How many requests of one subject are answered at once."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from zsnapdb.serve import messages


@dataclass
class SubjectTurns:
    """Counts the requests of each subject that are being answered, so that others have their turn too.

    The web process has 40 threads, the helper 64 places.
    """

    most: int = 24
    _answering: Counter[str] = field(init=False, default_factory=Counter)
    _counting: threading.Lock = field(init=False, default_factory=threading.Lock)

    @contextlib.contextmanager
    def of(self, subject: str) -> Iterator[None]:
        """Answer one request more of the subject in the block. RefusedRequest if too many are being answered."""
        key = subject.casefold()
        with self._counting:
            if self._answering[key] >= self.most:
                raise messages.too_busy(f"{self.most} requests of {subject} are being answered")
            self._answering[key] += 1
        try:
            yield
        finally:
            with self._counting:
                self._answering[key] -= 1
                if not self._answering[key]:
                    del self._answering[key]
