"""A process that writes for ever, to be killed: it claims a run again and again and says each version that the store took."""

import asyncio
import json
import sys
from pathlib import Path

from stepfence.ports import RunKey
from stepfence.stores.sqlite import Database, SqliteRunStore
from tests.stores.contract import PLAN, Driver


async def main(path: Path) -> None:
    store = SqliteRunStore(Database(path))
    await store.create({"metadata": {"name": "run", "namespace": "default"}, "spec": {"template": {}, "plan": {"steps": PLAN}}})
    driver, key, number = Driver(store), RunKey("default", "run"), 0
    await driver.accept(key)
    while True:
        number += 1
        stored = await driver.claim(key, f"claim-{number}")
        sys.stdout.write(json.dumps({"version": stored.run.version, "token": stored.run.token}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
