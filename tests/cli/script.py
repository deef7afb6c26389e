"""Worker commands run in this process, against a scripted gateway."""

import sys
from pathlib import Path

from stepfence.cli.__main__ import _parse
from stepfence.cli.worker import run_command
from stepfence.sdk import Options
from stepfence.sdk.state import StateDir
from tests.sdk.gateway import ScriptedGateway

PLAN = {"charge": "Payment", "lookup": "Read", "other": "Create"}


class Script:
    """Runs commands in this process, as a pod would run them one after the other."""

    def __init__(self, gateway: ScriptedGateway, folder: Path) -> None:
        self.gateway = gateway
        self.folder = folder
        (folder / "token").write_text("pod-token")
        self.state = StateDir(folder)
        self.environ = {
            "STEPFENCE_GATEWAY": "http://gateway.test",
            "STEPFENCE_NAMESPACE": "support",
            "STEPFENCE_RUN": "refund-4711",
            "STEPFENCE_RUN_UID": "u1",
            "STEPFENCE_WORKER": "1",
            "STEPFENCE_TOKEN_FILE": str(folder / "token"),
            "STEPFENCE_STATE_DIR": str(folder),
        }

    async def __call__(self, *argv: str) -> int:
        given = _parse(argv)
        return await run_command(given, self.environ, transport=self.gateway.transport, options=Options())

    async def exec(self, code: str, *options: str, step: str = "charge", action: str = "Payment") -> int:
        return await self("exec", "--step", step, "--action", action, *options, "--", sys.executable, "-c", code)
