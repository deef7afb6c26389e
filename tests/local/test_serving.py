"""The gateway of one state file: what it proves outlives the process that proved it."""

from pathlib import Path

from stepfence.local.serving import token_proofs
from stepfence.local.state import opened


async def test_the_proof_of_a_token_is_good_in_the_next_process_and_at_no_other_state_file(tmp_path: Path) -> None:
    async with opened(tmp_path / "one.db", command="stepfence local") as state:
        proof = (await token_proofs(state)).of("uid-1", 2)
    async with opened(tmp_path / "one.db", command="stepfence local") as state:
        again = await token_proofs(state)
    async with opened(tmp_path / "other.db", command="stepfence local") as state:
        other = await token_proofs(state)
    assert again.shown(proof, "uid-1", 2)
    assert not other.shown(proof, "uid-1", 2)
