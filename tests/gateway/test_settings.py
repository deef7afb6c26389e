"""Settings come from the environment and are refused by name."""

import dataclasses
from pathlib import Path

import pytest

from stepfence.gateway.settings import BadSetting, GatewaySettings


def test_without_an_environment_it_has_the_defaults() -> None:
    settings = GatewaySettings.load({"PATH": "/bin"})
    assert settings == GatewaySettings()
    assert (settings.https_port, settings.health_port, settings.bytes_per_second) == (8443, 8080, 1024 * 1024)


def test_each_field_is_read() -> None:
    given = {"STEPFENCE_HTTPS_PORT": "9443", "STEPFENCE_TLS_DIR": "/tls", "STEPFENCE_POD_NAMESPACE": "ns", "STEPFENCE_MARGIN_SECONDS": "3"}
    settings = GatewaySettings.load(given)
    assert (settings.https_port, settings.tls_dir, settings.pod_namespace, settings.core.margin) == (9443, Path("/tls"), "ns", 3)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("STEPFENCE_HTTPS_PORT", "https"),
        ("STEPFENCE_REQUEST_SECONDS", "0"),
        ("STEPFENCE_LOG_LEVEL", "loud"),
        ("STEPFENCE_MAX_REQUESTS", "-1"),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_name(name: str, value: str) -> None:
    with pytest.raises(BadSetting, match=name):
        GatewaySettings.load({name: value})


def test_a_request_ends_before_its_worker_stops_waiting_and_after_the_store_does() -> None:
    settings = GatewaySettings()
    assert settings.store_seconds < settings.request_seconds < 30
    assert all(field.default is not dataclasses.MISSING for field in dataclasses.fields(GatewaySettings))
