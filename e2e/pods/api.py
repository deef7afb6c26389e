"""The API server through `kubectl proxy`: whatever the kubeconfig logs in with, plain HTTP here."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from e2e.choice import Target
from e2e.cluster import ClusterError

RUNS = "/apis/stepfence.dev/v1alpha1"
_SECONDS = 30.0
Object = dict[str, Any]


class Api:
    """Reads and writes objects as the administrator of the cluster."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._http = httpx.Client(base_url=url, timeout=_SECONDS, trust_env=False)

    def close(self) -> None:
        """Let go of the connections."""
        self._http.close()

    def get(self, path: str) -> Object | None:
        """The object or list at a path; None when there is none."""
        answer = self._http.get(path)
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        return _checked(answer)

    def items(self, path: str, labels: str = "", fields: str = "") -> list[Object]:
        """The objects of a list, chosen by label and field selectors."""
        chosen = {"labelSelector": labels, "fieldSelector": fields}
        answer = self._http.get(path, params={key: value for key, value in chosen.items() if value})
        return list(_checked(answer)["items"])

    def create(self, path: str, manifest: Object) -> Object:
        """Create an object."""
        return _checked(self._http.post(path, json=manifest))

    def merge(self, path: str, patch: Object, *, manager: str = "stepfence") -> httpx.Response:
        """Send a merge patch; the answer, whatever it is: for what may be refused."""
        headers = {"Content-Type": "application/merge-patch+json"}
        return self._http.patch(path, json=patch, headers=headers, params={"fieldManager": manager})

    def delete(self, path: str, *, grace: int | None = None, propagation: str = "Background") -> None:
        """Delete an object; nothing happens when it is gone."""
        options: Object = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        answer = self._http.request("DELETE", path, json=options)
        if answer.status_code != httpx.codes.NOT_FOUND:
            _checked(answer)


def _checked(answer: httpx.Response) -> Object:
    if answer.is_error:
        raise ClusterError(f"{answer.request.method} {answer.request.url.path}: {answer.status_code} {answer.text}")
    found: Object = answer.json()
    return found


def service_url(api: Api, namespace: str, service: str = "provider") -> str:
    """Where a Service answers through the API server."""
    return f"{api.url}/api/v1/namespaces/{namespace}/services/{service}:http/proxy/"


@contextmanager
def proxied(target: Target) -> Iterator[str]:
    """Run `kubectl proxy` for a while; its URL."""
    command = [*target.kubectl, "proxy", "--port=0", "--keepalive=30s"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            if "127.0.0.1:" not in said:
                raise ClusterError(f"kubectl proxy did not start: {said}")
            yield f"http://127.0.0.1:{said.strip().rpartition(':')[2]}"
        finally:
            process.kill()
