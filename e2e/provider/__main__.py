"""`python -m e2e.provider --port 8080`."""

import argparse
import asyncio
from pathlib import Path

from .server import serve


def main() -> None:
    """Parse the command line and serve until told to stop."""
    parser = argparse.ArgumentParser(prog="python -m e2e.provider", description="A provider that logs every effect.")
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--log-file", type=Path, help="append the log to this file too, as JSON Lines")
    options = parser.parse_args()
    asyncio.run(serve(options.host, options.port, options.log_file))


if __name__ == "__main__":
    main()
