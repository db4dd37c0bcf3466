"""The last steps of a setup: doctor, a backup and a drill, as the commands of these names do them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from zsnapdb.base.errors import ConsistencyError, DamagedError, PreflightError, ZsnapdbError
from zsnapdb.config.settings import Settings, load
from zsnapdb.jobs.backup import run
from zsnapdb.jobs.base.events import Events
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.doctor import diagnose
from zsnapdb.jobs.doctor.diagnose import Diagnosis
from zsnapdb.jobs.trial import drill
from zsnapdb.jobs.trial.drill_log import DrillResult
from zsnapdb.planning.backup.fitness import Severity
from zsnapdb.planning.setup.plan import PROOF, SetupAction, SetupPlan
from zsnapdb.repository.drills import Outcome

_PATIENCE = 600.0
"""Seconds to wait for a job of the agent, which setup has just started."""
AGAIN = "all steps before this one are done; when the cause is mended, run the same setup again"


@dataclass(frozen=True)
class SetupCheck:
    """What doctor found."""

    diagnosis: Diagnosis


ProofResult = SetupCheck | run.BackupResult | DrillResult


def prove(plan: SetupPlan, events: Events) -> Iterator[ProofResult]:
    """Do the steps of the plan that prove what was set up, and yield the result of each, also of one that is not good.

    After a result that is not good: PreflightError if the instance is unfit, ConsistencyError or DamagedError if the
    drill did not pass. The error of a step has a note that says how setup goes on.
    """
    settings = load(Path(plan.configuration))
    instance = Instance.of(settings, plan.answers.instance, events).waiting(_PATIENCE)
    for step in plan.steps:
        if step.action not in PROOF:
            continue
        events.tell(step.title)
        try:
            result = _result(step.action, settings, instance)
            yield result
            _check(result)
        except ZsnapdbError as error:
            error.add_note(AGAIN)
            raise


def _result(action: SetupAction | None, settings: Settings, instance: Instance) -> ProofResult:
    if action is SetupAction.DOCTOR:
        (diagnosis,) = diagnose.diagnose(settings, instance.host, instance.name)
        return SetupCheck(diagnosis)
    if action is SetupAction.BACKUP:
        return run.backup(instance)
    return drill.drill(settings, instance, drill.DrillRequest())


def _check(result: ProofResult) -> None:
    if isinstance(result, SetupCheck):
        for finding in result.diagnosis.findings:
            if finding.severity is Severity.UNFIT:
                raise PreflightError(
                    f"the server is set up, and cannot be backed up: {finding.detail}", hint=finding.hint
                )
    elif isinstance(result, DrillResult) and result.evidence.outcome is not Outcome.PASSED:
        kind = DamagedError if result.evidence.outcome is Outcome.DAMAGED else ConsistencyError
        raise kind("the first drill did not pass", hint="see its checks that did not pass, above")
