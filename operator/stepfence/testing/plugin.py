"""The pytest plugin: the fixture `drive`. It is loaded in each session, so it imports what it needs when a test asks for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from stepfence.testing.report import Report

__all__ = ["drive"]


@pytest.fixture
def drive() -> Callable[..., Report]:
    """`stepfence.testing.drive` for tests without a loop: `drive(agent, crashes="every")`."""
    import asyncio

    try:
        from stepfence.testing.driving import drive_sync
    except ImportError as error:
        pytest.fail(f"the fixture `drive` needs more than the SDK: install stepfence[testing] ({error})", pytrace=False)

    def call(*what: Any, **how: Any) -> Report:
        __tracebackhide__ = True
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass  # what fails below must not be shown as if it came of this
        else:
            raise RuntimeError("in an async test write: from stepfence.testing import drive, and await drive(agent, ...)")
        return drive_sync(*what, **how)

    return call
