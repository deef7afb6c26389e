"""`python call.py METHOD PATH`: one call of the provider for a shell script, as the command of `stepfence exec`.

Key and body come from the environment that `stepfence exec` sets. Exit code 0: done, the answer on standard output; 65: the provider
surely did nothing; 1: nobody knows.
"""

import json
import os
import socket
import sys

import httpx

import stepfence
from stepfence import NotApplied

NOT_APPLIED = 65
SECONDS = 30.0


def main(method: str, path: str) -> int:
    """Send the request; return the exit code."""
    body = json.loads(os.environ["STEPFENCE_PAYLOAD"]) if method in {"POST", "PUT"} else None
    headers = {
        "Idempotency-Key": os.environ["STEPFENCE_KEY"],
        "Stepfence-Run": f"{os.environ['STEPFENCE_NAMESPACE']}/{os.environ['STEPFENCE_RUN']}",
        "Stepfence-Pod": socket.gethostname(),
    }
    try:
        answer = httpx.request(method, os.environ["PROVIDER_URL"] + path, json=body, headers=headers, timeout=SECONDS)
        stepfence.raise_for_status(answer)
    except (NotApplied, httpx.ConnectError) as error:
        sys.stderr.write(f"{method} {path}: {error}\n")
        return NOT_APPLIED
    except httpx.HTTPError as error:
        sys.stderr.write(f"{method} {path}: {error}\n")
        return 1
    sys.stdout.write(answer.text)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
