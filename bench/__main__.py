"""`python -m bench [latency] [idle] [flood] [claim]`: all of them by default. Each prints its figures; none fails by a figure."""

from __future__ import annotations

import argparse
import asyncio

from bench import claim, flood, idle, latency

_ALL = {"latency": latency.main, "idle": idle.main, "flood": flood.main, "claim": claim.main}


def main() -> None:
    """Run the named benchmarks, one after the other."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(_ALL)}")
    names = parser.parse_args().names or list(_ALL)
    unknown = [name for name in names if name not in _ALL]
    if unknown:
        parser.error(f"there is no benchmark {', '.join(unknown)}: choose from {', '.join(_ALL)}")
    for name in names:
        asyncio.run(_ALL[name]())


main()
