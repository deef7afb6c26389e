"""The few questions that bringing a cluster up asks of its API server, without the cost of starting kubectl for each."""

import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from e2e.cluster.errors import ClusterError
from e2e.cluster.pki import Pair

_REQUEST_SECONDS = 5.0


class Api:
    """A client of one API server, as its administrator."""

    def __init__(self, server: str, authority: Path, admin: Pair) -> None:
        self._server = server
        context = ssl.create_default_context(cafile=str(authority))
        context.load_cert_chain(admin.certificate, admin.key)
        self._context = context

    def ready(self) -> bool:
        """Whether the API server says that it is ready; False while it does not even answer."""
        answer = self._try("GET", "/readyz")
        return answer is not None and answer.status_code == httpx.codes.OK

    def exists(self, path: str) -> bool:
        """Whether there is an object at a path."""
        answer = self._try("GET", path)
        return answer is not None and answer.status_code == httpx.codes.OK

    def condition(self, path: str, name: str) -> str:
        """The status of a condition of the object at a path: True, False, Unknown; empty when there is none (yet)."""
        answer = self._try("GET", path)
        if answer is None or answer.status_code != httpx.codes.OK:
            return ""
        conditions = answer.json().get("status", {}).get("conditions", [])
        return next((str(entry["status"]) for entry in conditions if entry["type"] == name), "")

    def create(self, path: str, manifest: Mapping[str, Any]) -> None:
        """Create an object.

        Raises:
            ClusterError: the API server refuses or does not answer.
        """
        answer = self._try("POST", path, manifest)
        if answer is None or answer.status_code != httpx.codes.CREATED:
            said = answer.text if answer is not None else "no answer"
            raise ClusterError(f"cannot create {manifest['kind']} {manifest['metadata']['name']}: {said}")

    def _try(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> httpx.Response | None:
        content = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json"}
        try:
            with httpx.Client(verify=self._context, trust_env=False, timeout=_REQUEST_SECONDS) as client:
                return client.request(method, self._server + path, content=content, headers=headers)
        except httpx.TransportError:
            return None
