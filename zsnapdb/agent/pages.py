"""What the agent answers by HTTP: metrics of the last judgement, whether it lives, whether all is well."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from zsnapdb.agent.records import Records
from zsnapdb.agent.web import Answers
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.record import record_space
from zsnapdb.planning.agent.jobs import jobs_of
from zsnapdb.planning.agent.readiness import KnownRun, not_ready

_HANGS = 120.0
"""After how many seconds without a turn the agent is not alive."""


@dataclass
class Pages:
    """The pages. `settings` are those in use; `turned` is called after each turn that feeds the watchdog."""

    settings: Settings
    host: Host
    steady: Callable[[], float] = time.monotonic
    _last: float = field(init=False)

    def __post_init__(self) -> None:
        self.turned()

    def turned(self) -> None:
        """Keep that the agent works."""
        self._last = self.steady()

    def alive(self) -> tuple[str, ...]:
        """Return why the agent is not alive; nothing if it is."""
        silence = self.steady() - self._last
        return (f"the agent has done nothing for {silence:.0f} s",) if silence > _HANGS else ()

    def ready(self) -> tuple[str, ...]:
        """Return why not all is well; nothing if it is."""
        records, http = Records(self.settings.agent.state), self.settings.agent.http
        known = [KnownRun(job.name, records.run(job.name)) for job in jobs_of(self.settings)]
        stale = http.stale if http is not None else 0.0
        # On a full disk the last results of the jobs stay what they were.
        room = record_space.objections(self.settings.agent.state)
        return (*self.alive(), *room, *not_ready(known, stale, self.host.now()))

    def metrics(self) -> str:
        """Return the metrics that the status job wrote. OSError if there are none. They say how old they are."""
        file = self.settings.agent.metrics_file
        if file is None:
            raise FileNotFoundError(2, "the agent has no file of metrics")
        return file.read_text(encoding="utf-8")

    @property
    def answers(self) -> Answers:
        """The pages, for a web server."""
        return Answers(self.metrics, self.alive, self.ready)
