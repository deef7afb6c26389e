"""The proof of a script's token: what its first command was answered, all the others bring."""

import json
from pathlib import Path

from tests.cli.script import PLAN, Script
from tests.sdk.gateway import ScriptedGateway


async def test_all_commands_of_a_script_bring_the_proof_of_its_one_claim(tmp_path: Path) -> None:
    gateway = ScriptedGateway(PLAN)
    script = Script(gateway, tmp_path)
    gateway.proof = "p1.proof"
    assert await script.exec("pass") == 0
    assert await script.exec("pass", step="other", action="Create") == 0
    assert await script("drain") == 0
    assert gateway.routes().count("claim") == 1
    assert {body.get("tokenProof") for route, body in gateway.calls if route != "claim"} == {"p1.proof"}


async def test_a_claim_file_of_an_older_version_has_no_proof_and_is_good(tmp_path: Path) -> None:
    gateway = ScriptedGateway(PLAN)
    script = Script(gateway, tmp_path)
    assert await script.exec("pass") == 0
    claim = script.folder / "claim.json"
    older = json.loads(claim.read_text())
    del older["token_proof"]
    claim.write_text(json.dumps(older))
    assert await script.exec("pass", step="other", action="Create") == 0
    assert gateway.routes().count("claim") == 1
