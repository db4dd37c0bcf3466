"""The part of a page that shows of which states of an instance clones can be made."""

from __future__ import annotations

from dataclasses import dataclass

from zsnapdb.serve.messages import FailureAnswer
from zsnapdb.serve.problems import ProblemDetails, problem_of
from zsnapdb.serve.protection_rows import PointsCard, points_of
from zsnapdb.serve.visits import Visit, Visits, document_of
from zsnapdb.verbs.requests import InstancePointsVerb


@dataclass(frozen=True)
class StatesPart:
    """The states of an instance, or why they are not known: the page is of use without them."""

    card: PointsCard | None
    problem: ProblemDetails | None


def states(visits: Visits, visit: Visit, instance: str) -> StatesPart:
    """Return what the helper says of the states of an instance that it listed."""
    ending = visits.ending(visit.session, InstancePointsVerb(name=instance))
    if isinstance(ending, FailureAnswer):
        return StatesPart(None, problem_of(ending))
    return StatesPart(points_of(document_of(ending), visit.now), None)
