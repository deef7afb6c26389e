"""Settings by environment."""

from __future__ import annotations

import pytest

from stepfence.controller.settings import ControllerSettings


def test_nothing_set_gives_the_defaults_and_the_service_of_the_namespace() -> None:
    settings = ControllerSettings.from_environ({})
    assert settings.gateway_url == "https://stepfence-gateway.stepfence-system.svc:8443"
    assert settings.core.margin == 10


def test_fields_and_seconds_are_read() -> None:
    environ = {
        "STEPFENCE_POD_NAME": "controller-0",
        "STEPFENCE_POD_NAMESPACE": "ops",
        "STEPFENCE_WORKERS": "3",
        "STEPFENCE_RESYNC_SECONDS": "1.5",
        "STEPFENCE_MARGIN_SECONDS": "2",
        "STEPFENCE_BACKOFF_BASE_SECONDS": "1",
    }
    settings = ControllerSettings.from_environ(environ)
    assert (settings.pod_name, settings.workers, settings.resync_seconds) == ("controller-0", 3, 1.5)
    assert settings.gateway_url == "https://stepfence-gateway.ops.svc:8443"
    assert (settings.core.margin, settings.core.backoff_base) == (2, 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("STEPFENCE_WORKERS", "many"),
        ("STEPFENCE_WORKERS", "0"),
        ("STEPFENCE_LEASE_SECONDS", "1.5"),
        ("STEPFENCE_HEALTH_PORT", "-1"),
        ("STEPFENCE_LOG_LEVEL", "loud"),
    ],
)
def test_a_bad_value_names_its_variable(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=name):
        ControllerSettings.from_environ({name: value})
