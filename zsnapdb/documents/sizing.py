"""The document of a sizing estimate."""

from __future__ import annotations

from typing import Annotated

from zsnapdb.documents.base import At, Document, Number


class MonthlyCostFields(Document):
    """The cost at a price list. `restore`: traffic of one restore outside of the provider."""

    name: Annotated[str, At("price.name")]
    date: Annotated[str, At("price.date")]
    source: Annotated[str, At("price.source")]
    currency: Annotated[str, At("price.currency")]
    storage: Number
    requests: Number
    restore: Number


class RequestFields(Document):
    """Requests in a month by kind."""

    put: Number
    list: Number
    get: Number


class SizingDocument(Document):
    """Estimated seconds, bytes, objects, requests and costs of backups of a server."""

    size: Annotated[int, At("workload.size")]
    change: Annotated[Number, At("workload.change")]
    binlog: Annotated[Number, At("workload.binlog")]
    full_seconds: Number
    increment_seconds: Number
    restore_seconds: Number
    backup_memory: int
    restore_memory: int
    kept_full: Annotated[int, At("kept.full")]
    kept_increments: Annotated[int, At("kept.increments")]
    kept_days: Annotated[Number, At("kept.days")]
    stored_full: int
    stored_increments: int
    stored_binlogs: int
    objects: int
    requests: RequestFields
    costs: tuple[MonthlyCostFields, ...]
