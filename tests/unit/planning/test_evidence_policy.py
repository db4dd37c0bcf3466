"""A policy is compared line by line."""

from __future__ import annotations

from zsnapdb.config.repository import (
    EncryptionSettings,
    KeepRules,
    KeepSettings,
    ObjectLockSettings,
    RepositorySettings,
)
from zsnapdb.config.settings import MaskingSettings
from zsnapdb.planning.evidence import PolicyChange, PolicyFacts, policy_changes, policy_lines

KEEP = KeepSettings(last=3, within=7200.0)


def lines(
    keep: KeepSettings | None = KEEP, masking: MaskingSettings | None = None, **repository: object
) -> dict[str, str]:
    settings = RepositorySettings.model_validate({"url": "s3://bucket", **repository})
    return policy_lines(
        PolicyFacts(settings, keep, KeepRules(last=1), 3600.0, masking or MaskingSettings(), ("age1here",), ("sign",))
    )


def test_a_policy_says_what_is_kept_locked_readable_believed_and_masked() -> None:
    lock = ObjectLockSettings.model_validate({"mode": "compliance", "for": "7d"})
    encryption = EncryptionSettings(recipients=("age1one",), accept_plain=True)
    masking = MaskingSettings(required=True, run=(("/mask.sql",),), keep_history=("a.b",), canaries=("a secret",))
    policy = lines(masking=masking, object_lock=lock, encryption=encryption, evidence=True)
    assert policy == {
        "evidence": "kept",
        "retention, last": "3",
        "retention, within": "2 h",
        "retention of local sets, last": "1",
        "binlogs on the server": "kept for 1 h",
        "immutability": "compliance for 7 d",
        "recipient age1one": "can read new backups",
        "identity age1here": "on this host",
        "signing key sign": "on this host",
        "backups that are not encrypted": "are accepted",
        "masking": "required",
        "masking, step 1": "/mask.sql (not read)",
        "masking, rebuilt tables": "changed",
        "masking, canaries": "1",
        "masking, history of a.b": "kept",
    }
    assert "secret" not in str(policy)


def test_a_change_names_the_line_and_what_it_was_and_is() -> None:
    before, after = lines(), lines(keep=None)
    assert policy_changes(before, before) == ()
    assert policy_changes(before, after) == (
        PolicyChange(what="retention", after="nothing is ever removed"),
        PolicyChange(what="retention, last", before="3"),
        PolicyChange(what="retention, within", before="2 h"),
    )
