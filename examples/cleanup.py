"""Delete a record, once a person has approved it, and tell who asked. Written with the synchronous face of the SDK."""

import os
import socket
from typing import Any

import httpx

import stepfence
from stepfence import Action, Step

PROVIDER = os.environ["PROVIDER_URL"]
TELL = "owner@example.com"


def request(method: str, path: str, step: Step, body: Any = None) -> Any:
    """One call of the provider. An answer that applied nothing is a failure; any other trouble is a doubt."""
    headers = {
        "Idempotency-Key": step.key,
        "Stepfence-Run": f"{os.environ['STEPFENCE_NAMESPACE']}/{os.environ['STEPFENCE_RUN']}",
        "Stepfence-Step": step.id,
        "Stepfence-Pod": socket.gethostname(),
    }
    with step.sending():
        answer = httpx.request(method, f"{PROVIDER}{path}", json=body, headers=headers, timeout=step.time_left)
        stepfence.raise_for_status(answer)
    return answer.json()


def delete(payload: Any, step: Step) -> Any:
    """Perform what the person saw when approving: the recorded payload."""
    return request("DELETE", f"/records/{payload['record']}", step)


def notify(payload: Any, step: Step) -> Any:
    """Send one message."""
    return request("POST", "/notifications", step, payload)


def main() -> None:
    """The agent. A person who denies the deletion is a result too."""
    with stepfence.connect_sync() as run:
        record = run.input["record"]
        try:
            run.step("delete-record", Action.DELETE, {"record": record}, delete)
            text = f"Record {record} is deleted."
        except stepfence.StepDenied as denied:
            text = f"Record {record} is kept: {denied}"
        run.step("notify", Action.CREATE, {"to": TELL, "text": text}, notify)
        run.finish({"told": text})


if __name__ == "__main__":
    main()
