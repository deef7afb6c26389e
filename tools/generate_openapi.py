"""Write the OpenAPI document of the worker API to docs/reference/openapi.json: `python -m tools.generate_openapi [--check]`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from stepfence.gateway.app import GatewayApp
from stepfence.gateway.auth import Deps
from stepfence.gateway.edge import Limits
from stepfence.gateway.metrics import Metrics

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "openapi.json"


def document() -> str:
    """Return the document as it stands in the tree. Nothing is called, so that nothing needs to be there to be called."""
    app = GatewayApp(Deps(None, None), None, Metrics(), Limits())  # type: ignore[arg-type]
    return json.dumps(app.openapi(), indent=2, ensure_ascii=False) + "\n"


def main(arguments: list[str]) -> int:
    """Write the document, or with `--check` say whether the one in the tree is up to date."""
    if "--check" not in arguments:
        PAGE.write_text(document())
        return 0
    if PAGE.read_text() == document():
        return 0
    print(f"{PAGE} is out of date: run python -m tools.generate_openapi", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
