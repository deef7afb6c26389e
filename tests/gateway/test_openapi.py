"""The published OpenAPI document."""

from typing import Any

import pytest

from stepfence.core.errors import Code
from stepfence.gateway.app import create_app
from stepfence.gateway.problems import status_of
from tools import generate_openapi

DOCUMENT: dict[str, Any] = create_app(None, None).openapi()  # type: ignore[arg-type]
OPERATIONS = [operation for path in DOCUMENT["paths"].values() for operation in path.values()]


def test_the_page_in_the_tree_is_up_to_date() -> None:
    assert generate_openapi.main(["--check"]) == 0


def test_it_has_the_worker_routes_and_no_other() -> None:
    base = "/v1/namespaces/{namespace}/agentruns/{name}"
    run = {f"{base}/{verb}" for verb in ("claim", "plan", "renew", "drain", "release", "finish", "fail", "halt")}
    steps = {f"{base}/steps/{{step}}/{verb}" for verb in ("begin", "complete", "fail", "lose", "probe", "result")}
    assert set(DOCUMENT["paths"]) == run | steps


@pytest.mark.parametrize("operation", OPERATIONS, ids=[operation["operationId"] for operation in OPERATIONS])
def test_every_operation_names_its_problem_and_its_token(operation: dict[str, Any]) -> None:
    assert set(operation["responses"]) == {"200", "default"}
    problem = operation["responses"]["default"]["content"]
    assert problem == {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    assert operation["security"] == [{"HTTPBearer": []}]
    assert operation["description"]


def test_the_frameworks_own_errors_are_not_in_it() -> None:
    assert not {"HTTPValidationError", "ValidationError"} & set(DOCUMENT["components"]["schemas"])


def test_a_refusal_is_a_409_unless_it_is_about_the_call_or_the_store() -> None:
    others = {code: status_of(code) for code in Code if status_of(code) != 409}
    assert others == {
        Code.BAD_REQUEST: 400,
        Code.UNAUTHENTICATED: 401,
        Code.FORBIDDEN: 403,
        Code.NOT_FOUND: 404,
        Code.TOO_LARGE: 413,
        Code.OVER_BUDGET: 429,
        Code.STORE_UNAVAILABLE: 503,
    }
