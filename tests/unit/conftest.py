"""Settings of all unit tests."""

from __future__ import annotations

from hypothesis import settings

# How long an example takes depends on the machine and its load, and no law is about that.
settings.register_profile("unit", deadline=None)
settings.load_profile("unit")
