"""The HTTP API as the tests of the CRDs use it: plain writes, and what the API server says to each."""

import base64
import json
import ssl
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import yaml

from e2e.cluster import eventually

ROOT = Path(__file__).resolve().parents[2]
VERSION = "v1alpha1"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_MERGE = {"Content-Type": "application/merge-patch+json"}
_SECONDS = 30.0

Document = dict[str, Any]


def crd_files() -> Sequence[Path]:
    """The definitions of the tree."""
    return [ROOT / "crds" / f"{name}.yaml" for name in ("agentruns", "agentrunrecords")]


def objects(group: str, plural: str) -> str:
    """The path of all objects of a kind in the namespace of the tests."""
    return f"/apis/{group}/{VERSION}/namespaces/default/{plural}"


@dataclass(frozen=True)
class Said:
    """An answer of the API server: its code, the object or Status, and the fields that a refusal names with their reasons."""

    code: int
    body: Document

    @property
    def accepted(self) -> bool:
        return self.code in (httpx.codes.OK, httpx.codes.CREATED)

    @property
    def message(self) -> str:
        return str(self.body.get("message", ""))

    @property
    def causes(self) -> dict[str, str]:
        causes = self.body.get("details", {}).get("causes", [])
        # One without a field says that the rules were not looked at, for the schema had refused already.
        return {cause["field"]: cause["message"] for cause in causes if cause["field"] != "<nil>"}


class Api:
    """An administrator's client."""

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        context = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
        with tempfile.NamedTemporaryFile() as login:
            login.write(base64.b64decode(user["client-certificate-data"]) + base64.b64decode(user["client-key-data"]))
            login.flush()
            context.load_cert_chain(login.name)
        self._client = httpx.Client(base_url=cluster["server"], verify=context, trust_env=False, timeout=_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._client.close()

    def get(self, path: str, **params: str) -> Said:
        return _said(self._client.get(path, params=params))

    def create(self, path: str, manifest: Mapping[str, Any]) -> Said:
        """Create as kubectl does, which refuses unknown fields."""
        return _said(self._client.post(path, json=manifest, params={"fieldValidation": "Strict"}))

    def merge(self, path: str, patch: Mapping[str, Any]) -> Said:
        return _said(self._client.patch(path, content=json.dumps(patch), headers=_MERGE))

    def replace(self, path: str, manifest: Mapping[str, Any]) -> Said:
        return _said(self._client.put(path, json=manifest))

    def delete(self, path: str) -> None:
        self._client.delete(path).raise_for_status()

    def install(self, definition: Document) -> None:
        """Create a definition; it is served a moment later."""
        said = self.create(DEFINITIONS, definition)
        assert said.accepted, said.message

    def wait_served(self, group: str, plural: str) -> None:
        """Wait until objects of a kind can be written."""
        name = f"{plural}.{group}"

        def served() -> bool:
            status = self.get(f"{DEFINITIONS}/{name}").body.get("status", {})
            established = any(c["type"] == "Established" and c["status"] == "True" for c in status.get("conditions") or ())
            return established and self.get(objects(group, plural)).accepted

        eventually(f"{name} being served", served, seconds=_SECONDS)


def _said(answer: httpx.Response) -> Said:
    return Said(answer.status_code, answer.json())
