"""OpenAPI schema of `zsnapdb serve`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def openapi() -> dict[str, Any]:
    """Return the schema that `GET /api/v1/openapi.json` returns."""
    from zsnapdb.serve.api_app import create_app
    from zsnapdb.serve.helper_messages import HelperClient

    return create_app(HelperClient(Path("/nonexistent"))).openapi()


def schema() -> str:
    """Return the schema as text."""
    return json.dumps(openapi(), indent=1) + "\n"
