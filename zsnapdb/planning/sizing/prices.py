"""List prices of object stores."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StorePrice:
    """A price list: for a GiB and month, for 1,000 requests by kind, and for a GiB that leaves the provider."""

    name: str
    date: str
    source: str
    currency: str
    gib_month: float
    put_thousand: float
    list_thousand: float
    get_thousand: float
    traffic_gib: float = 0.0


DATE = "2026-11-29"
NOTE = (
    "List prices without discounts and taxes, written down on that date without reading the providers' pages again."
    " Compare them with the source before a decision."
)
PRICES: dict[str, StorePrice] = {
    "s3": StorePrice(
        "Amazon S3 Standard, us-east-1",
        DATE,
        "https://aws.amazon.com/s3/pricing/",
        "USD",
        gib_month=0.023,
        put_thousand=0.005,
        list_thousand=0.005,
        get_thousand=0.0004,
        traffic_gib=0.09,
    ),
    "azure": StorePrice(
        "Azure Blob Storage, hot tier, LRS, East US",
        DATE,
        "https://azure.microsoft.com/pricing/details/storage/blobs/",
        "USD",
        gib_month=0.018,
        put_thousand=0.0065,
        list_thousand=0.0065,
        get_thousand=0.0005,
        traffic_gib=0.087,
    ),
    "google": StorePrice(
        "Google Cloud Storage Standard, us-east1",
        DATE,
        "https://cloud.google.com/storage/pricing",
        "USD",
        gib_month=0.02,
        put_thousand=0.005,
        list_thousand=0.005,
        get_thousand=0.0004,
        traffic_gib=0.12,
    ),
}
"""Price lists by the name of `--prices`."""
