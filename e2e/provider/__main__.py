"""`python -m e2e.provider --port 8080`."""

import argparse
import asyncio
import sys
from pathlib import Path

from .server import serve


def main() -> int:
    """Parse the command line, serve until told to stop, and return the process's exit code."""
    parser = argparse.ArgumentParser(prog="python -m e2e.provider", description="A provider that logs every effect.")
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--log-file", type=Path, help="append the log to this file too, as JSON Lines")
    options = parser.parse_args()
    try:
        asyncio.run(serve(options.host, options.port, options.log_file))
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        why = (error.strerror or str(error)).partition(" (while ")[0]  # Python adds the address, which stands before it here
        print(f"error: {error.filename or f'{options.host}:{options.port}'}: {why}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
