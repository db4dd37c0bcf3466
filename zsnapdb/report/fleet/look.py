"""The view of a fleet for `zsnapdb serve`: what was read last, judged now, as `zsnapdb fleet status` prints it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from zsnapdb.base.errors import UnknownNameError
from zsnapdb.config import fleet as fleet_config
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.fleet import fleet
from zsnapdb.jobs.fleet.reading import SeenMemory
from zsnapdb.report.fleet.status import FleetView
from zsnapdb.serve.messages import ResultAnswer
from zsnapdb.serve.roles import Role, sees_all
from zsnapdb.serve.verbs import FleetQuery


@dataclass(frozen=True)
class FleetLook:
    """Answers about the fleet of the configuration (None: the usual file). No repository is asked."""

    host: Host
    config: Path | None = None
    memory: SeenMemory = field(default_factory=SeenMemory)

    def __call__(self, asked: FleetQuery, role: Role) -> ResultAnswer:
        """Return the rows that are asked for. UnknownNameError if no fleet is configured, ConfigError if wrongly.

        The text of an error can name endpoint, bucket and folders: only who sees everything is told it.
        """
        file = self.config or Path(os.environ.get(fleet_config.VARIABLE, str(fleet_config.DEFAULT_PATH)))
        if not file.exists():
            raise UnknownNameError(
                f"no fleet is looked at on this host: there is no {file}",
                hint="write one as `zsnapdb example fleet.toml` shows, and let a timer run `zsnapdb fleet status`",
                about=(),
            )
        wanted = fleet.FleetRequest.parse(asked.filters, asked.sort, cached=True).part(asked.after, asked.most)
        request = replace(wanted, tells_errors=sees_all(role))
        state = fleet.status(fleet_config.load(file), request, self.host, memory=self.memory)
        return ResultAnswer(document=dict(FleetView(state).fields()))
