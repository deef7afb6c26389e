"""The schema of `spec.template`: Kubernetes' own PodTemplateSpec, made fit for a custom resource definition.

`podtemplatespec.json` beside this file is what `extract` took from an API server's OpenAPI document, so that generating
needs no cluster. Descriptions are left out: with them the definition is too long for a client-side apply.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.generate_crds.fields import Schema

EXTRACTED = Path(__file__).with_name("podtemplatespec.json")
ROOT = "io.k8s.api.core.v1.PodTemplateSpec"
QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"

# As the API server reads a quantity.
_QUANTITY_PATTERN = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
_KEPT = ("type", "format", "required", "enum", "x-kubernetes-map-type")
# Lists that stay keyed by name, so that one container can be mended by server-side apply. All others are atomic: some have keys
# with defaults, which a definition cannot have, and each keyed item costs managed fields on every status write.
_KEYED = ("containers", "initContainers", "volumes")
# Metadata that means nothing in a template and only the API server writes.
_DROPPED = ("managedFields",)


def extract(openapi: Mapping[str, Any]) -> Schema:
    """Take PodTemplateSpec out of an API server's OpenAPI v2 document: references resolved, descriptions left out.

    Raises:
        KeyError: the document has no PodTemplateSpec.
    """
    definitions: Mapping[str, Any] = openapi["definitions"]

    def resolve(node: Any) -> Any:
        if isinstance(node, list):
            return [resolve(item) for item in node]
        if not isinstance(node, Mapping):
            return node
        if "$ref" in node:
            return _named(str(node["$ref"]).rpartition("/")[2])
        kept = {key: value for key, value in node.items() if key != "description" or isinstance(value, Mapping)}
        return {key: resolve(value) for key, value in kept.items()}

    def _named(name: str) -> Any:
        quantity = {"format": "quantity"} if name == QUANTITY else {}
        return resolve(definitions[name]) | quantity

    schema: Schema = _named(ROOT)
    return schema


def pod_template(description: str) -> Schema:
    """The schema of the template, from the extracted one."""
    schema = _structural(json.loads(EXTRACTED.read_text()), "")
    schema["required"] = ["spec"]
    pod = schema["properties"]["spec"]
    pod["properties"]["containers"]["minItems"] = 1
    # Anything else would be refused for the Job, after the run was accepted.
    pod["properties"]["restartPolicy"]["enum"] = ["Never"]
    for containers in ("containers", "initContainers"):
        pod["properties"][containers]["items"]["required"] = ["name", "image"]
    # Generators of manifests print `creationTimestamp: null`.
    schema["properties"]["metadata"]["properties"]["creationTimestamp"]["nullable"] = True
    return {"description": description, **schema}


def _structural(node: Mapping[str, Any], name: str) -> Schema:
    if node.get("format") == "int-or-string":
        return {"x-kubernetes-int-or-string": True}
    if node.get("format") == "quantity":
        return {"x-kubernetes-int-or-string": True, "pattern": _QUANTITY_PATTERN}
    schema: Schema = {key: node[key] for key in _KEPT if key in node}
    if "properties" in node:
        children = {key: value for key, value in node["properties"].items() if key not in _DROPPED}
        schema["properties"] = {key: _structural(value, key) for key, value in sorted(children.items())}
    if "additionalProperties" in node:
        schema["additionalProperties"] = _structural(node["additionalProperties"], "")
    if "items" in node:
        schema |= _listing(node, name)
    return schema


def _listing(node: Mapping[str, Any], name: str) -> Schema:
    items = _structural(node["items"], "")
    if name in _KEYED:
        return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": items}
    return {"x-kubernetes-list-type": "atomic", "items": items}
