"""Of which instances a role may have clones, and whose data everybody may see as it is."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import JsonValue

from zsnapdb.config.settings import Settings
from zsnapdb.serve import messages
from zsnapdb.serve.messages import RefusedRequest
from zsnapdb.serve.roles import Belonging, Role, RoleVerdict, VerbKind, decide, may_see_unmasked


def refusal(role: Role, settings: Settings, name: str) -> RefusedRequest | None:
    """Return why the role may have no clones of the instance; None if it may. UsageError if there is none."""
    decision = decide(role, VerbKind.CLONE_CREATE, Belonging.NOBODY)
    if decision.verdict is not RoleVerdict.ALLOWED:
        return messages.forbidden(decision.reason)
    _, instance = settings.one_instance(name)
    is_for_all = bool(instance.masking.run) or name in settings.serve.unmasked
    return None if is_for_all or may_see_unmasked(role) else messages.unmasked(name)


def is_for_all(settings: Settings, name: str) -> bool:
    """Whether everybody may see the instance's data as it is."""
    instance = settings.instance.get(name)
    return instance is not None and not instance.masking.run and name in settings.serve.unmasked


def shown(role: Role, settings: Settings) -> Iterator[dict[str, JsonValue]]:
    """Yield what is told of each instance of which there are clones, in order of their names."""
    for name, instance in sorted(settings.instance.items()):
        if instance.vm is None:
            yield {
                "name": name,
                "masked": bool(instance.masking.run),
                "pool": instance.pool is not None,
                "clones_allowed": refusal(role, settings, name) is None,
            }
