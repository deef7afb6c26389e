"""The program's ends, as whoever starts it sees them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def started(**environ: str) -> subprocess.CompletedProcess[str]:
    """The gateway, started with that environment alone, when it has ended."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "operator"), **environ}
    command = [sys.executable, "-m", "stepfence.gateway"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_a_setting_that_cannot_be_read_ends_it_by_name() -> None:
    ended = started(STEPFENCE_HTTPS_PORT="https")
    assert (ended.returncode, ended.stderr) == (2, "stepfence gateway: STEPFENCE_HTTPS_PORT='https' is no whole number\n")


@pytest.mark.parametrize("kubeconfig", [None, "nowhere"])
def test_without_a_cluster_it_says_so_in_json(kubeconfig: str | None, tmp_path: Path) -> None:
    # Where a user's own kubeconfig would be found if anybody looked for it.
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").write_text('{"apiVersion": "v1", "kind": "Config"}')
    named = {} if kubeconfig is None else {"KUBECONFIG": str(tmp_path / kubeconfig)}
    ended = started(HOME=str(tmp_path), **named)
    assert ended.returncode == 2
    line = json.loads(ended.stderr.splitlines()[-1])
    assert (line["event"], line["level"]) == ("gateway.no_cluster", "error")
    assert line["error"]
