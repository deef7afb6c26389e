"""`make demo-cluster`, as a person runs it on a cluster of theirs that has Stepfence: one refund, and nothing left."""

import os
import subprocess
import sys

from e2e.choice import NAMED_BY
from e2e.demo_cluster import NAMESPACE
from e2e.install import ROOT
from e2e.pods.world import World


def test_the_demo_ends_with_one_refund_and_leaves_nothing(world: World) -> None:
    environ = {**os.environ, NAMED_BY: str(world.target.kubeconfig)}
    command = [sys.executable, "-m", "e2e.demo_cluster"]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    told = done.stdout
    order = (
        "the run stops and asks",
        "question: did step 'refund'",
        "answer with the printed command",
        "agentrun.stepfence.dev/refund-4711 patched",
    )
    places = [told.index(words) for words in (*order, "The provider's own log: 1 refund\n", "Done in ")]
    assert places == sorted(places)
    assert world.api.get(f"/api/v1/namespaces/{NAMESPACE}") is None
