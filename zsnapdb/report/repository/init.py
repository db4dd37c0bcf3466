"""Views of a repository's marker, and of keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from zsnapdb.documents.repository import InitDocument, KeysDocument, KeysPlanDocument
from zsnapdb.jobs.repository.init import InitPlan, InitStep, KeyFiles
from zsnapdb.planning.repository.known_backups import SigningState, signing_hint
from zsnapdb.report.view import View

_DONE = {
    InitStep.CREATE: "{url} is a new repository",
    InitStep.REBUILD: "{url} had lost its marker; the marker was rebuilt from the manifests of the repository",
    InitStep.RECIPIENTS: "{url} has a new list of recipients; existing backups stay encrypted to their old recipients",
    InitStep.NOTHING: "{url} is a repository already; nothing was changed",
}
_PLANNED = {
    InitStep.CREATE: "{url} holds no repository: create one",
    InitStep.REBUILD: "{url} has lost its marker: rebuild the marker from the manifests of the repository",
    InitStep.RECIPIENTS: "{url} lists other recipients than the configuration: update the list",
    InitStep.NOTHING: "{url} is a repository already: nothing to do",
}


class InitPlanView(View, kind="init-plan", document=InitDocument, read_from="plan"):
    """The plan of `init`."""

    plan: InitPlan
    words: ClassVar[Mapping[InitStep, str]] = _PLANNED

    def text(self) -> str:
        plan, recipients = self.plan, self.plan.marker.recipients
        lines = [self.words[plan.step].format(url=plan.url), f"  id          {plan.marker.id}"]
        lines += [f"  recipient   {recipient}" for recipient in recipients] or [
            "  encryption  none: no recipients are configured"
        ]
        lines += [*self._signing(), *([f"  store       {plan.store_note}"] if plan.store_note else [])]
        lines += [f"  no longer   {name}" for name in plan.before if name not in recipients]
        return "\n".join([*lines, *(f"  warning     {one.detail}; {one.hint}" for one in plan.lifecycle)])

    def _signing(self) -> list[str]:
        plan = self.plan
        if plan.signing is SigningState.KEY:
            key = [f"  new key     {plan.new_key} signs what this host stores"] if plan.new_key is not None else []
            return [*key, *([f"  signer      {plan.signer}"] if plan.signer is not None else [])]
        if plan.signing is SigningState.UNDECIDED:
            return [f"  signing     not decided: {signing_hint(plan.name)}"]
        if plan.signing is SigningState.NONE:
            return ["  signing     none: this host believes whoever can write to the repository"]
        return []


class InitView(InitPlanView, kind="init"):
    """The result of `init`."""

    words: ClassVar[Mapping[InitStep, str]] = _DONE


class KeysView(View, kind="keys", document=KeysDocument):
    """The public parts of keys, as lines for the configuration."""

    files: Sequence[KeyFiles]

    def text(self) -> str:
        lines = []
        for item in self.files:
            if item.repository is not None:
                lines.append(f"[repository.{item.repository}.encryption]")
            if item.identity is not None:
                lines.append(
                    "recipients = ["
                    + ", ".join(f'"{recipient}"' for recipient in item.recipients)
                    + f"]  # identity in {item.identity}"
                )
            if item.signer is not None:
                lines.append(f'signers = ["{item.signer}"]  # signing key in {item.signing_key}')
        return "\n".join(lines) or "no repository's configuration names an identity_file or a signing_key_file"


class KeysPlanView(View, kind="keys-plan", document=KeysPlanDocument):
    """The plan of new key files."""

    identity: Path | None
    signing_key: Path | None

    @property
    def files(self) -> list[tuple[str, Path]]:
        files = (("age identity", self.identity), ("Ed25519 signing key", self.signing_key))
        return [(what, file) for what, file in files if file is not None]

    def text(self) -> str:
        return "\n".join(f"write a new {what} to {file}, mode 0600" for what, file in self.files)
