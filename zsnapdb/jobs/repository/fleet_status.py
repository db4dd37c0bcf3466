"""Shows all instances of all hosts in one view, from the repositories or from their last readings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from zsnapdb.base.errors import NotFound, UnreachableError, UsageError, ZsnapdbError
from zsnapdb.config.fleet import FleetSettings
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.repository.fleet_reader import SeenFiles, SeenMemory, SeenProblem, SeenRepository
from zsnapdb.planning.fleet import overview
from zsnapdb.planning.health.objectives import Verdict


@dataclass(frozen=True)
class RepositoryState:
    """The last read state of a repository of the fleet, and the error if the repository could not be read now.

    `seen` is the present reading or, if there is an `error`, the last successful reading. If there is no reading,
    `seen` is None. `changed` is the number of instances that were read again. `is_believed_by_key` is set if this host
    trusts only documents that a configured signer signed.
    """

    name: str
    seen: SeenRepository | None
    error: ZsnapdbError | None
    changed: int
    is_believed_by_key: bool
    has_identity: bool

    @property
    def is_opaque(self) -> bool:
        """Whether the repository's backups are encrypted, and this host has no key for them."""
        return self.seen is not None and self.seen.is_encrypted and not self.has_identity


@dataclass(frozen=True)
class FleetState:
    """The state of a fleet at a time (UTC). `rows` contains the requested rows, in the requested order."""

    at: datetime
    is_cached: bool
    repositories: tuple[RepositoryState, ...]
    hosts: tuple[overview.HostState, ...]
    rows: tuple[overview.FleetRow, ...]
    chosen: int
    """The number of instances that pass the filters, including instances that are not in `rows`."""
    is_known: bool
    """Whether the names in the filters match anything in the fleet. Unread data may contain any name."""
    counts: overview.FleetCounts
    """The counts of all instances, including instances that are not in `rows`."""

    @property
    def total(self) -> int:
        return self.counts.instances

    @property
    def exit_code(self) -> int:
        """The largest exit code among the shown rows, the repositories that could not be read, and missing hosts."""
        return max(
            (
                *(Verdict.BROKEN.rank for host in self.hosts if host.is_silent and not host.instances),
                *(one.exit_code for one in self.rows),
                *(one.error.exit_code for one in self.repositories if one.error is not None),
            ),
            default=0,
        )


@dataclass(frozen=True)
class FleetRequest:
    """The requested rows and their order. If `cached` is set, no repository is read.

    The first `after` rows in this order are left out, and at most `most` rows are returned. If `most` is None, the
    number is not limited. If `tells_errors` is False, only the codes of errors are shown, without their texts.
    """

    filters: Sequence[overview.Filter] = ()
    order: overview.SortKey = overview.SortKey.RED
    cached: bool = False
    after: int = 0
    most: int | None = None
    tells_errors: bool = True

    @classmethod
    def parse(cls, filters: Sequence[str], order: str, *, cached: bool) -> FleetRequest:
        """Return the request for the filters and the order that a user typed.

        Raises UsageError if a filter or the order is invalid.
        """
        if order not in list(overview.SortKey):
            raise UsageError(
                f"--sort {order!r} is not a sort order", hint=f"choose from: {', '.join(overview.SortKey)}"
            )
        return cls(tuple(overview.Filter.parse(text) for text in filters), overview.SortKey(order), cached)

    def part(self, after: int, most: int) -> FleetRequest:
        return replace(self, after=after, most=most)

    def told(self, problem: SeenProblem) -> str:
        """Return the text to show for a problem: the message or, if errors are not shown, only the error code."""
        return problem.message if self.tells_errors else problem.code


def status(settings: FleetSettings, request: FleetRequest, host: Host, memory: SeenMemory | None = None) -> FleetState:
    """Return the state of the fleet now. If a repository cannot be read, the other repositories are still shown.

    Callers that need the state often should pass `memory`, so that only changed files are parsed again.
    """
    at = host.now()
    states = [_repository(settings, name, request, host, memory) for name in sorted(settings.repository)]
    known = overview.hosts(_signs(states), at, settings.heard_within, settings.hosts)
    silent = {one.host: one for one in known if one.is_silent}
    rows = [one for state in states for one in _rows(settings, request, state, at, silent)]
    shown = overview.ordered(overview.filter_rows(rows, request.filters), request.order)
    wanted = shown[request.after :][: request.most]
    is_known = any(state.seen is None for state in states) or any(one.facts is None for one in rows)
    is_known = is_known or overview.is_known(request.filters, rows, [one.host for one in known], settings.repository)
    return FleetState(at, request.cached, tuple(states), known, wanted, len(shown), is_known, overview.counts(rows))


def _signs(states: Sequence[RepositoryState]) -> list[overview.InstanceFacts]:
    """Return the facts about all instances. Ignore untrusted signs of life of hosts that a trusted document names.

    Anybody who can write to the repository can write an untrusted sign of life.
    """
    facts = [
        (state.is_believed_by_key, one.facts())
        for state in states
        if state.seen is not None
        for one in state.seen.instances.values()
    ]
    proved = {one.host for is_believed, one in facts if is_believed}
    return [one if is_believed or one.host not in proved else replace(one, heard=None) for is_believed, one in facts]


def _repository(
    settings: FleetSettings, name: str, request: FleetRequest, host: Host, memory: SeenMemory | None
) -> RepositoryState:
    reading, error, encryption = None, None, settings.repository[name].encryption
    files = SeenFiles.of(settings, name)
    if not request.cached:
        # Import late, because loading the reader takes longer than showing cached states.
        from zsnapdb.jobs.repository.fleet_reader import RepositoryReader

        try:
            reading = RepositoryReader(name, settings.repository[name], settings, host).read()
        except ZsnapdbError as failed:
            error = failed
            files.note_failure(failed, host.now())
    elif (before := files.failure()) is not None:
        error = UnreachableError(
            f"the reading at {before.at:%Y-%m-%d %H:%M} UTC failed: {request.told(before.problem)}"
        )
    seen = reading.seen if reading is not None else memory.repository(files) if memory else files.repository()
    if seen is None and error is None:
        error = NotFound(f"repository {name} has not been read yet", hint="run `zsnapdb fleet status` once")
    return RepositoryState(
        name=name,
        seen=seen,
        error=error,
        changed=reading.changed if reading is not None else 0,
        is_believed_by_key=bool(encryption.signers),
        has_identity=encryption.identity_file is not None,
    )


def _rows(
    settings: FleetSettings,
    request: FleetRequest,
    state: RepositoryState,
    at: datetime,
    silent: dict[str, overview.HostState],
) -> Iterator[overview.FleetRow]:
    seen = state.seen.instances if state.seen is not None else {}
    problems = state.seen.problems if state.seen is not None else {}
    for name in sorted({*seen, *problems}):
        made = (
            overview.row(seen[name].facts(), seen[name].read, at, settings.objectives, silent)
            if name in seen
            else overview.FleetRow(name, state.name, None, None, None, ())
        )
        problem = problems.get(name)
        yield made if problem is None else replace(made, problem=request.told(problem), problem_code=problem.exit_code)
