"""The helper's answer to a request: it authenticates the subject, decides by role, and runs the command."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING

from pydantic import BaseModel, JsonValue

from zsnapdb.base.errors import PreflightError, UsageError, ZsnapdbError
from zsnapdb.base.run_context import Audience
from zsnapdb.config.settings import Settings
from zsnapdb.documents import api
from zsnapdb.jobs.clone.expected_clone import ExpectedClone
from zsnapdb.serve import helper_messages
from zsnapdb.serve.clone_documents import OwnedCommit, PublicClone, belonging, seen_in, the_clone
from zsnapdb.serve.command_processes import CommandCall, RunCommand
from zsnapdb.serve.helper_messages import (
    BegunAnswer,
    Ending,
    FailureAnswer,
    HelperRequest,
    ListLoginsVerb,
    LoginVerb,
    OpenSessionVerb,
    PendingAnswer,
    RefusedRequest,
    ResultAnswer,
    WatchedOperation,
)
from zsnapdb.serve.operations import OperationRecord, Operations, audience_of, new_id
from zsnapdb.serve.project_limits import longest_lease
from zsnapdb.serve.protection import ProtectionReader, narrowed
from zsnapdb.serve.quota_check import COUNTED_DEED, Admission
from zsnapdb.serve.roles import (
    CloneOwnership,
    Role,
    RoleVerdict,
    VerbKind,
    decide,
    may_see_results,
    may_see_unmasked,
    sees_all,
)
from zsnapdb.serve.tokens import CredentialBook, CredentialHolder
from zsnapdb.verbs import requests as verbs
from zsnapdb.verbs.delegation import parse
from zsnapdb.verbs.requests import SERVED, AboutClone, CloneAction, CloneQuery, CreateCloneVerb, NewClone

if TYPE_CHECKING:
    from zsnapdb.serve.helper_logins import LoginHandler


@dataclass(frozen=True)
class CloneTerms:
    """The helper's decisions about a new clone: its name, its lease in seconds, and whether it must be masked.

    `most_bytes` is the clone's quota (None means the usual quota).
    """

    name: str
    ttl: float
    masks: bool
    most_bytes: int | None = None


def create_words(wanted: NewClone, terms: CloneTerms, subject: str) -> Sequence[str]:
    """Return the arguments that create a clone for the subject. Every clone has a lease."""
    ttl = {"ttl": _seconds(terms.ttl)}
    quota = f"{terms.most_bytes}B" if terms.most_bytes is not None else None
    decided = {"name": terms.name, **ttl, "mask": terms.masks, "quota": quota, "json": True}
    return _arguments(CreateCloneVerb.command, {**ttl, **dict(_sent_fields(wanted)), **decided}, subject)


def action_arguments(verb: CloneAction, clone: str, ttl: float, subject: str) -> Sequence[str]:
    """Return the arguments that run the verb on the clone with that id.

    `ttl` (seconds) is the clone's new lease or protection.
    """
    times = {name: _seconds(ttl) for name in ("ttl", "for") if f"--{name}" in SERVED[verb.command].options}
    decided = {"name": clone, **times, **verb.fixed, "json": True}
    return _arguments(verb.command, {**dict(_sent_fields(verb)), **decided}, subject)


def query_arguments(verb: CloneQuery, clone: str, subject: str) -> Sequence[str]:
    """Return the arguments of a command that reports something about the clone with this id."""
    return _arguments(verb.command, {**dict(_sent_fields(verb)), **verb.fixed, "name": clone}, subject)


def _sent_fields(model: BaseModel) -> Iterator[tuple[str, object]]:
    """Yield the fields that were sent with a verb, under the names of the command's arguments and options."""
    for name, declared in type(model).model_fields.items():
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            yield from _sent_fields(value)
        elif not (isinstance(model, AboutClone) and name in ("kind", "key", "guid")):
            yield declared.alias or name, value


def _arguments(command: str, values: Mapping[str, object], subject: str) -> Sequence[str]:
    """Return the arguments for the command `zsnapdb`. `parse` refuses values that the command does not accept."""
    rest = {name: value for name, value in values.items() if value is not None and value is not False}
    positional = [word.strip("[]").lower() for word in SERVED[command].words]
    words = [str(rest.pop(name)) for name in positional if name in rest]
    options = [f"--{name}" if value is True else f"--{name}={value}" for name, value in rest.items()]
    return parse((command, *options, *words), subject, SERVED).words


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f}s"


@dataclass
class SubjectTurns:
    """Limit of simultaneous requests per subject, so that one subject cannot block other subjects.

    The web process has 40 threads, and the helper answers at most 64 requests simultaneously.
    """

    most: int = 24
    _answering: Counter[str] = field(init=False, default_factory=Counter)
    _counting: threading.Lock = field(init=False, default_factory=threading.Lock)

    @contextlib.contextmanager
    def of(self, subject: str) -> Iterator[None]:
        """Count one more request of the subject during the block.

        Raises RefusedRequest if too many requests of the subject are running.
        """
        key = subject.casefold()
        with self._counting:
            if self._answering[key] >= self.most:
                raise helper_messages.too_busy(f"{self.most} requests of {subject} are being answered")
            self._answering[key] += 1
        try:
            yield
        finally:
            with self._counting:
                self._answering[key] -= 1
                if not self._answering[key]:
                    del self._answering[key]


def refusal(role: Role, settings: Settings, name: str) -> RefusedRequest | None:
    """Return why the role may not have clones of the instance; None if it may have them.

    Raises UsageError if the instance is unknown.
    """
    decision = decide(role, VerbKind.CLONE_CREATE, CloneOwnership.NOBODY)
    if decision.verdict is not RoleVerdict.ALLOWED:
        return helper_messages.forbidden(decision)
    settings.one_instance(name)
    return None if settings.may_all_clone(name) or may_see_unmasked(role) else helper_messages.unmasked(name)


def is_for_all(settings: Settings, name: str) -> bool:
    """Return whether every subject may see the instance's data unmasked."""
    instance = settings.instance.get(name)
    return instance is not None and not instance.masking.run and name in settings.serve.unmasked


def instances_shown(role: Role, settings: Settings) -> Iterator[dict[str, JsonValue]]:
    """Yield the fields that are shown for each instance that can have clones, sorted by instance name."""
    for name, instance in sorted(settings.instance.items()):
        if instance.vm is None:
            yield {
                "name": name,
                "masked": bool(instance.masking.run),
                "pool": instance.pool is not None,
                "clones_allowed": refusal(role, settings, name) is None,
            }


_CHANGE_SECONDS = 3600.0
"""Timeout in seconds of a change. The creation of a clone can take that long if its backup must be received first."""
_DIFFERENCE_SECONDS = 600.0
"""Timeout in seconds of a comparison of two states, during which two servers run."""
PATIENCE = 10.0
"""Seconds after which the helper answers that the operation is still running."""


@dataclass
class RequestHandler:
    """The components that answer a request.

    `settings` reads the configuration for each request, so that changes apply immediately.

    - `look` returns the document of `zsnapdb clone list --json`; `commits` lists the commits of the clones.
    - `run` runs the commands that change clones; `protection` runs read-only commands.
    - `beat` records a heartbeat for the clone with the given id.
    - `logins` answers requests about logins to the pages (None: not configured).
    - `fleet` answers requests about all instances of all hosts (None: no fleet is configured on this host).
    """

    settings: Callable[[], Settings]
    tokens: CredentialBook
    operations: Operations
    look: Callable[[], ResultAnswer]
    commits: Callable[[], Sequence[OwnedCommit]]
    run: RunCommand
    protection: ProtectionReader
    beat: Callable[[str], None]
    now: Callable[[], datetime]
    logins: LoginHandler | None = None
    fleet: Callable[[verbs.FleetQuery, Role], ResultAnswer] | None = None
    patience: float = PATIENCE
    turns: SubjectTurns = field(default_factory=SubjectTurns)
    _admission: Admission = field(init=False)

    def __post_init__(self) -> None:
        self._admission = Admission(
            self.settings, self.operations, lambda: seen_in(self.look()), lambda: self.commits()
        )

    def answer(self, request: HelperRequest, tell: Callable[[BegunAnswer], None]) -> Ending:
        """Execute the request if its token permits this, and return the last line of the answer.

        `tell` is called once with the started operation. If `tell` fails, the operation continues. Raises
        RefusedRequest or ZsnapdbError if the request was not executed.
        """
        if isinstance(request.verb, LoginVerb):
            return self._login(request.token, request.verb)
        asks = self._holder(request.token)
        with self.turns.of(asks.subject):
            try:
                return self._answer(asks, request.verb, tell)
            except ZsnapdbError as error:
                told = Audience(audience_of(asks)).told(error)
                if told is not error:
                    print(error, file=sys.stderr, flush=True)
                raise told from error

    def _answer(self, asks: CredentialHolder, verb: verbs.RoleVerb, tell: Callable[[BegunAnswer], None]) -> Ending:
        if isinstance(verb, verbs.AboutNothing):
            helper_messages.require(decide(asks.role, verb.kind, CloneOwnership.NOBODY))
        match verb:
            case verbs.GetSubjectVerb():
                return self._subject(asks)
            case verbs.ListInstancesVerb():
                return ResultAnswer(document={"instances": [*instances_shown(asks.role, self.settings())]})
            case verbs.ListClonesVerb():
                return self._clones(asks)
            case verbs.GetCloneVerb():
                return ResultAnswer(
                    document={"clone": dict(self._permitted(asks, verb.kind, verb.name, verb.guid).fields)}
                )
            case verbs.GetOperationVerb():
                found = self._begun(asks, verb.kind, verb.id)
                return found.ending or PendingAnswer(operation=found.id)
            case verbs.WatchOperationVerb():
                begun = self._begun(asks, verb.kind, verb.id)
                return WatchedOperation(operation=begun.id, subject=begun.subject, ending=begun.ending).answer()
            case verbs.CancelOperationVerb():
                return self._cancel(self._begun(asks, verb.kind, verb.id))
            case verbs.CloneQuery():
                return self._told(asks, verb)
            case verbs.BeatCloneVerb():
                return self._beat(asks, verb)
            case verbs.ProtectionRead():
                return self._protection(asks, verb)
            case verbs.ListFleetVerb():
                if self.fleet is None:
                    raise helper_messages.no_such("view of a fleet", "fleet.toml")
                return self.fleet(verb.asked, asks.role)
            case verbs.CreateCloneVerb():
                return self._ended(self._create(asks, verb), tell)
            case verbs.CloneAction():
                return self._ended(self._do(asks, verb), tell)
            case _:
                raise NotImplementedError(verb.kind)

    def _login(self, token: str, verb: LoginVerb) -> ResultAnswer:
        if self.logins is not None:
            return self.logins.answer(token, verb)
        if isinstance(verb, OpenSessionVerb):
            raise helper_messages.no_such("log-in", verb.login)
        return ResultAnswer(document={"logins": []} if isinstance(verb, ListLoginsVerb) else {"closed": False})

    def _holder(self, token: str) -> CredentialHolder:
        """Return the holder of a valid token. Otherwise raise RefusedRequest, which has no facts about this host."""
        try:
            asks = self.tokens.holder(token, self.now())
        except ZsnapdbError as error:
            print(error, file=sys.stderr, flush=True)
            raise helper_messages.not_now("the tokens cannot be read") from error
        if asks is None:
            raise helper_messages.unauthenticated()
        return asks

    def _subject(self, asks: CredentialHolder) -> ResultAnswer:
        limits = self.settings().serve
        longest = longest_lease(asks.subject, limits).seconds
        clones: dict[str, JsonValue] = {
            "most": limits.per_subject,
            "ttl": min(limits.ttl, longest),
            "longest_lease": longest,
        }
        return ResultAnswer(
            document={
                "subject": asks.subject,
                "role": asks.role.value,
                "expires": asks.expires.isoformat(),
                "clones": clones,
            }
        )

    def _clones(self, asks: CredentialHolder) -> ResultAnswer:
        seen = [one for one in seen_in(self.look()) if sees_all(asks.role) or one.belongs_to(asks.subject)]
        return ResultAnswer(document={"clones": [dict(one.fields) for one in seen]})

    def _protection(self, asks: CredentialHolder, verb: verbs.ProtectionRead) -> ResultAnswer:
        match verb:
            case verbs.InstancePointsVerb():
                _, instance = self.settings().one_instance(verb.name)
                if instance.vm is not None:
                    raise UsageError(
                        f"{verb.name} is a virtual machine, and cannot be cloned by HTTP",
                        hint="`GET /api/v1/instances` lists the instances that can be cloned",
                    )
            case verbs.ListDrillsVerb() | verbs.ListEvidenceVerb():
                self.settings().one_instance(verb.instance)
        return self.protection.read(verb, asks.subject)

    def _told(self, asks: CredentialHolder, verb: verbs.CloneQuery) -> ResultAnswer:
        clone = self._permitted(asks, verb.kind, verb.name, verb.guid)
        if isinstance(verb, verbs.CloneLogsVerb | verbs.LoginOfClone):
            self._require_visible(asks, clone)
        words = query_arguments(verb, clone.id, asks.subject)
        told = self.protection.told(words, asks.subject, clone.meant, audience=audience_of(asks))
        # Another clone may have had this name when the command read the clone.
        gone = self._objection(asks, verb.kind, clone)
        if gone is not None:
            raise RefusedRequest(gone)
        if isinstance(verb, verbs.LoginOfClone):
            return ResultAnswer(document=narrowed(api.ShownLogin, told).model_dump(mode="json"))
        if not isinstance(verb, verbs.CloneLogsVerb):
            return told
        return ResultAnswer(
            document={name: told.document[name] for name in ("clone", "lines") if name in told.document}
        )

    def _require_visible(self, asks: CredentialHolder, clone: PublicClone) -> None:
        """Raise RefusedRequest if the clone is unmasked and the token's role may not see texts from its data.

        A subject can have tokens of several roles.
        """
        if not (clone.masked or may_see_unmasked(asks.role) or is_for_all(self.settings(), clone.instance)):
            raise helper_messages.unmasked_words(clone.name)

    def _beat(self, asks: CredentialHolder, verb: verbs.BeatCloneVerb) -> ResultAnswer:
        clone = self._permitted(asks, verb.kind, verb.name, verb.guid)
        every = clone.fields.get("heartbeat")
        if every is None:
            raise PreflightError(
                f"no heartbeats are expected for clone {clone.name}",
                hint='make one with "heartbeat", such as "30s"',
                about=(clone.owner,),
            )
        self.beat(clone.id)
        return ResultAnswer(document={"clone": clone.name, "heartbeat": every})

    def _begun(self, asks: CredentialHolder, verb: VerbKind, operation: str) -> OperationRecord:
        """Return the operation if the subject started it with a role that sees no more than the current role.

        If another subject started it, raises RefusedRequest as for an unknown operation.
        """
        found = self.operations.find(operation)
        # Operation ids are not secret. So the answer is the same for an unknown operation and for another subject's,
        # for every role.
        if found is None:
            raise helper_messages.no_such("operation", operation)
        is_own = found.subject == asks.subject and may_see_results(asks.role, found.role)
        own = CloneOwnership.OWN if is_own else CloneOwnership.OTHERS
        helper_messages.require(decide(asks.role, verb, own), "operation", operation)
        return found

    def _cancel(self, begun: OperationRecord) -> Ending:
        """Cancel the operation, and answer when it has ended. Raises RefusedRequest if it had already ended."""
        self.operations.cancel(begun.id)
        ended = self.operations.wait(begun.id, self.patience)
        if ended is None:
            raise helper_messages.no_such("operation", begun.id)
        if ended.ending is None:
            return PendingAnswer(operation=ended.id)
        if isinstance(ended.ending, FailureAnswer) and ended.ending.code == helper_messages.CANCELLED:
            return ResultAnswer(document={"operation": ended.id, "state": helper_messages.CANCELLED})
        raise helper_messages.has_ended(ended.id)

    def _permitted(self, asks: CredentialHolder, verb: VerbKind, name: str, guid: str | None = None) -> PublicClone:
        """Return the clone with that name. Raises RefusedRequest if the role may not use the verb on the clone.

        If the role may not see the clone, or the clone has another GUID, the answer is the same as for an unknown
        clone.
        """
        clone = the_clone(seen_in(self.look()), name)
        if clone is None or guid not in (None, clone.guid):
            raise helper_messages.no_such("clone", name)
        helper_messages.require(decide(asks.role, verb, belonging(clone, asks.subject)), "clone", name)
        return clone

    def _do(self, asks: CredentialHolder, verb: verbs.CloneAction) -> OperationRecord:
        request = _digest(verb.model_dump_json(exclude={"key"}))
        before = self._before(asks, verb, request)
        if before is not None:
            return before
        clone = self._permitted(asks, verb.kind, verb.name, verb.guid)
        if isinstance(verb, verbs.DiffBranchesVerb):
            self._require_visible(asks, clone)
        words = action_arguments(verb, clone.id, self._admission.lease(verb.time, clone.owner), asks.subject)
        # Only one thread at a time checks the limits or the key, and then starts the operation.
        is_alone = verb.key is not None or isinstance(verb, COUNTED_DEED)
        with self._admission.alone if is_alone else contextlib.nullcontext():
            before = self._before(asks, verb, request)
            if before is not None:
                return before
            self._admission.deed(verb, clone)
            return self._begin(
                asks,
                verb.kind,
                clone.id,
                words,
                request=request,
                key=verb.key,
                meant=clone.meant,
                seconds=_DIFFERENCE_SECONDS if isinstance(verb, verbs.DiffBranchesVerb) else _CHANGE_SECONDS,
                objection=lambda: self._objection(asks, verb.kind, clone),
            )

    def _before(
        self, asks: CredentialHolder, verb: verbs.CreateCloneVerb | verbs.CloneAction, request: str
    ) -> OperationRecord | None:
        """Return the subject's operation with the verb's key, even if its clone was destroyed.

        Return None if no operation has the key. Raises RefusedRequest if the key belongs to a different request, or to
        an operation that the subject started with another role.
        """
        before = self.operations.of_key(asks.subject, _digest(verb.key)) if verb.key is not None else None
        if before is None:
            return None
        helper_messages.require(decide(asks.role, verb.kind, CloneOwnership.OWN))
        if before.request != request or not may_see_results(asks.role, before.role):
            raise helper_messages.key_reused()
        return before

    def _objection(self, asks: CredentialHolder, verb: VerbKind, clone: PublicClone) -> FailureAnswer | None:
        """Return why the clone can no longer be changed; None if it can be changed.

        The clone may have been destroyed while the command waited.

        A later clone with the same name is a different clone, which must not be changed.
        """
        try:
            now = self._permitted(asks, verb, clone.id)
        except RefusedRequest as refused:
            return refused.failure
        return None if now.is_same_as(clone) else helper_messages.no_such("clone", clone.name).failure

    def _create(self, asks: CredentialHolder, verb: verbs.CreateCloneVerb) -> OperationRecord:
        settings = self.settings()
        refused = refusal(asks.role, settings, verb.wanted.instance)
        if refused is not None:
            raise refused
        _, instance = settings.one_instance(verb.wanted.instance)
        name = verb.wanted.name or f"{verb.wanted.instance[:20]}-{secrets.token_hex(4)}"
        masks = verb.wanted.mask or (bool(instance.masking.run) and not may_see_unmasked(asks.role))
        lease = self._admission.lease(verb.wanted.ttl, asks.subject)
        request = _digest(f"{verb.wanted.model_dump_json()} {'masked' if masks else 'as the site has it'}")
        with self._admission.alone:
            before = self._before(asks, verb, request)
            if before is not None:
                return before
            admits = self._admission.new_clone(asks.subject)
            words = create_words(verb.wanted, CloneTerms(name, lease, masks, admits.most_bytes), asks.subject)
            most = settings.clones.quota if admits.most_bytes is None else admits.most_bytes
            return self._begin(asks, verb.kind, name, words, request=request, key=verb.key, most_bytes=most)

    def _begin(
        self,
        asks: CredentialHolder,
        verb: VerbKind,
        clone: str,
        words: Sequence[str],
        *,
        request: str,
        key: str | None = None,
        meant: ExpectedClone | None = None,
        most_bytes: int = 0,
        seconds: float = _CHANGE_SECONDS,
        objection: Callable[[], FailureAnswer | None] = lambda: None,
    ) -> OperationRecord:
        record = OperationRecord(
            id=new_id(),
            subject=asks.subject,
            role=asks.role,
            verb=verb,
            clone=clone,
            request=request,
            key=_digest(key) if key is not None else None,
            most_bytes=most_bytes,
            started=self.now(),
        )
        call = CommandCall(words, asks.subject, record.id, seconds, objection, issuer=asks.issuer, meant=meant)
        call = replace(call, audience=audience_of(asks))
        self.operations.begin(record, lambda: self.run(call), call.cancelled)
        return record

    def _ended(self, record: OperationRecord, tell: Callable[[BegunAnswer], None]) -> Ending:
        tell(BegunAnswer(operation=record.id))
        waited = self.operations.wait(record.id, self.patience)
        if waited is None:
            raise helper_messages.no_such("operation", record.id)
        return waited.ending or PendingAnswer(operation=record.id)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
