"""The definitions as people install and see them, and the manifests that they refuse."""

import json
from pathlib import Path

import pytest
import yaml

from e2e.cluster import Cluster
from e2e.contract.crd_api import ROOT, VERSION, Api, Document, crd_files, objects
from e2e.contract.crd_bad_writes import BAD_MANIFESTS, UNKNOWN_FIELDS
from e2e.contract.crd_runs import CONDITIONS, CONTAINER, SPEC, STEPS, TEMPLATE, TIME, attempt, manifest, must, seed
from tools.generate_crds.template import EXTRACTED, extract

GROUP = "stepfence.dev"
RUNS = objects(GROUP, "agentruns")
# kubectl keeps a whole manifest in an annotation, and the API server allows this many bytes for all annotations.
ANNOTATIONS_LIMIT = 262_144


def refused(cluster: Cluster, document: Document) -> str:
    """What kubectl says to a manifest that has to be refused."""
    done = cluster.try_kubectl("create", "-f", "-", stdin=json.dumps(document))
    assert done.returncode != 0, done.stdout
    return done.stderr


@pytest.mark.parametrize("how", [[], ["--server-side"]], ids=["client-side", "server-side"])
def test_the_definitions_can_be_applied_again_and_again(api_server: Cluster, api: Api, how: list[str]) -> None:
    # Done twice before the look, for the first one after another manager may move annotations and owners.
    for _ in range(2):
        api_server.kubectl("apply", *how, "--force-conflicts" if how else "--overwrite", "-k", str(ROOT / "crds"))
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/agentruns.stepfence.dev"
    before = must(api.get(path))["metadata"]["resourceVersion"]
    api_server.kubectl("apply", *how, "--force-conflicts" if how else "--overwrite", "-k", str(ROOT / "crds"))
    assert must(api.get(path))["metadata"]["resourceVersion"] == before


@pytest.mark.parametrize("path", crd_files(), ids=lambda path: path.stem)
def test_the_definitions_are_far_below_what_client_side_apply_can_keep(path: Path) -> None:
    assert len(json.dumps(yaml.safe_load(path.read_text()))) < ANNOTATIONS_LIMIT / 2


def test_the_definitions_are_accepted_without_a_complaint(api: Api) -> None:
    for name in ("agentruns", "agentrunrecords"):
        found = must(api.get(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}.stepfence.dev"))
        conditions = {condition["type"]: condition["status"] for condition in found["status"]["conditions"]}
        assert conditions["Established"] == conditions["NamesAccepted"] == "True"
        assert "NonStructuralSchema" not in conditions


def test_names_short_name_and_category_are_known(api_server: Cluster, api: Api) -> None:
    must(api.create(RUNS, manifest(GROUP, SPEC, "named")))
    for word in ("arun", "agentrun", "agentruns", "stepfence"):
        assert "agentrun.stepfence.dev/named" in api_server.kubectl("get", word, "-o", "name")
    assert "agentrunrecords" in api_server.kubectl("get", "--raw", f"/apis/{GROUP}/{VERSION}")


def test_a_new_run_is_not_taken_for_a_reconciled_one(api: Api) -> None:
    created = must(api.create(RUNS, manifest(GROUP, SPEC) | {"status": {"phase": "Succeeded"}}))
    assert created["status"] == {"observedGeneration": -1, "phase": "Pending"}
    assert created["spec"]["backoffLimit"] == 5
    plain = must(api.create(RUNS, manifest(GROUP, {"template": TEMPLATE})))
    assert (plain["spec"]["backoffLimit"], plain["spec"]["workerHistoryLimit"]) == (6, 3)


def test_runs_can_be_selected_by_phase(api: Api) -> None:
    running, pending = seed(api, GROUP, "open"), seed(api, GROUP, "fresh")
    must(api.merge(f"{running}/status", {"status": {"phase": "Running"}}))
    found = must(api.get(RUNS, fieldSelector="status.phase=Running"))
    names = {item["metadata"]["name"] for item in found["items"]}
    assert running.rpartition("/")[2] in names
    assert pending.rpartition("/")[2] not in names


def test_kubectl_shows_what_a_run_is_doing(api_server: Cluster, api: Api) -> None:
    path = seed(api, GROUP, "open")
    ready = {"type": "Ready", "status": "False", "lastTransitionTime": TIME, "reason": "NeedsReconciliation", "message": ""}
    status = {"progress": "1/5", "openStep": "refund", "conditions": [ready]}
    must(api.merge(f"{path}/status", {"status": status}))
    name = path.rpartition("/")[2]
    head, row = api_server.kubectl("get", "agentruns", name).splitlines()
    assert head.split() == ["NAME", "PHASE", "STEPS", "TOKEN", "OPEN", "AGE"]
    assert row.split()[:5] == [name, "NeedsReconciliation", "1/5", "3", "refund"]
    head, row = api_server.kubectl("get", "agentruns", name, "-o", "wide").splitlines()
    assert head.split() == ["NAME", "PHASE", "STEPS", "TOKEN", "OPEN", "REASON", "AGE"]
    assert row.split()[5] == "NeedsReconciliation"


@pytest.mark.parametrize(("sentence", "change", "path"), BAD_MANIFESTS, ids=[bad[0] for bad in BAD_MANIFESTS])
def test_a_bad_manifest_is_refused_by_its_field(api: Api, sentence: str, change: Document, path: str) -> None:
    said = api.create(RUNS, manifest(GROUP, SPEC | change))
    assert (said.code, list(said.causes)) == (422, [path])


@pytest.mark.parametrize(("sentence", "change", "path"), UNKNOWN_FIELDS, ids=[bad[0] for bad in UNKNOWN_FIELDS])
def test_an_unknown_field_is_refused_by_its_path(api_server: Cluster, sentence: str, change: Document, path: str) -> None:
    assert f'unknown field "{path}"' in refused(api_server, manifest(GROUP, SPEC | change))


@pytest.mark.parametrize("name", ["a" * 64, "refund.4711"], ids=["64 characters", "with a dot"])
def test_a_run_is_named_by_a_dns_label(api: Api, name: str) -> None:
    said = api.create(RUNS, manifest(GROUP, SPEC, name))
    assert (said.code, list(said.causes)) == (422, ["metadata.name"])
    assert api.create(RUNS, manifest(GROUP, SPEC, "b" * 63)).code in (201, 409)


def test_kubectl_names_the_field_of_each_mistake_in_a_plan(api_server: Cluster) -> None:
    twice = refused(api_server, manifest(GROUP, SPEC | {"plan": {"steps": [STEPS[0], STEPS[0]]}}))
    assert "spec.plan.steps" in twice
    assert "key lookup already exists" in twice
    assert "step ids must be unique" in twice


@pytest.mark.parametrize("how", ["client-side", "server-side"])
def test_applying_the_same_manifest_again_changes_nothing(api_server: Cluster, api: Api, how: str) -> None:
    words = ["apply", "-f", "-", *(["--server-side"] if how == "server-side" else [])]
    document = json.dumps(manifest(GROUP, SPEC, f"again-{how}"))
    api_server.kubectl(*words, stdin=document)
    path = f"{RUNS}/again-{how}"
    must(api.merge(f"{path}/status", {"status": CONDITIONS["open"]}))
    must(api.merge(path, {"spec": {"suspend": True, "decisions": {"refund.q1": {"verdict": "Happened"}}}}))
    before = must(api.get(path))
    said = api_server.kubectl(*words, stdin=document)
    assert must(api.get(path)) == before
    # No default of the API server stands inside a list: kubectl would see a difference each time.
    assert "serverside-applied" in said if how == "server-side" else "unchanged" in said


def pod(**fields: object) -> Document:
    return SPEC | {"template": {"spec": {"containers": [CONTAINER | fields]}}}


TEMPLATES: list[tuple[str, Document]] = [
    ("ports of one number without protocols", pod(ports=[{"containerPort": 80}, {"containerPort": 80, "protocol": "UDP"}])),
    ("quantities as numbers and as text", pod(resources={"limits": {"cpu": 1, "memory": "1.5Gi"}, "requests": {"cpu": "100m"}})),
    ("a probe by number and by name", pod(readinessProbe={"httpGet": {"port": 80}}, livenessProbe={"tcpSocket": {"port": "http"}})),
    ("a variable that stands twice", pod(env=[{"name": "A", "value": "1"}, {"name": "A", "value": "2"}])),
    ("a variable from a secret", pod(env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}])),
    (
        "what generators of manifests print",
        SPEC | {"template": {"metadata": {"creationTimestamp": None, "labels": {"a": "b"}}, **TEMPLATE}},
    ),
    (
        "volumes, claims and selectors",
        SPEC
        | {
            "template": {
                "metadata": {"annotations": {"kubectl.kubernetes.io/default-container": "agent"}},
                "spec": {
                    "containers": [CONTAINER],
                    "initContainers": [CONTAINER | {"name": "first", "restartPolicy": "Always"}],
                    "restartPolicy": "Never",
                    "imagePullSecrets": [{"name": "pull"}],
                    "tolerations": [{"operator": "Exists"}],
                    "nodeSelector": {"a": "b"},
                    "volumes": [
                        {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}},
                        {"name": "all", "projected": {"sources": [{"secret": {"name": "s"}}]}},
                    ],
                },
            }
        },
    ),
]


@pytest.mark.parametrize(("sentence", "spec"), TEMPLATES, ids=[template[0] for template in TEMPLATES])
def test_a_template_that_a_job_would_take_is_kept_as_it_is(api: Api, sentence: str, spec: Document) -> None:
    template = must(api.create(RUNS, manifest(GROUP, spec)))["spec"]["template"]
    assert template == spec["template"]


def test_one_container_can_be_mended_by_server_side_apply(api_server: Cluster, api: Api) -> None:
    helper = {"name": "helper", "image": "helper:1"}
    path = f"{RUNS}/mended"
    must(api.create(RUNS, manifest(GROUP, SPEC | {"template": {"spec": {"containers": [CONTAINER, helper]}}}, "mended")))
    more = {"name": "agent", "resources": {"limits": {"memory": "2Gi"}}, "image": CONTAINER["image"]}
    mend = manifest(GROUP, {"template": {"spec": {"containers": [more]}}}, "mended")
    api_server.kubectl("apply", "--server-side", "--field-manager=mender", "-f", "-", stdin=json.dumps(mend))
    assert must(api.get(path))["spec"]["template"]["spec"]["containers"] == [more, helper]


def test_the_pod_template_is_the_one_of_the_api_server(api: Api) -> None:
    assert extract(must(api.get("/openapi/v2"))) == json.loads(EXTRACTED.read_text())


def test_every_field_of_a_status_is_kept(api: Api) -> None:
    path = seed(api, GROUP, "terminal")
    status = CONDITIONS["terminal"] | {
        "worker": {"number": 1, "job": "j", "podUID": "u", "templateHash": "h", "startedAt": TIME, "message": "m"},
        "workerProblem": {"reason": "PodCreateRefused", "message": "quota"},
        "ledger": {**CONDITIONS["terminal"]["ledger"], "close": {
            **CONDITIONS["terminal"]["ledger"]["close"], "open": [attempt(1) | {"outcome": "Failed", "terminatedAt": TIME}]}},
    }  # fmt: skip
    must(api.merge(f"{path}/status", {"status": status}))
    assert must(api.get(path))["status"] == status
