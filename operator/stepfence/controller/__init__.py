"""Watches runs, their Jobs and pods; starts workers, settles runs whose worker is gone. It holds no state of its own."""

__all__: list[str] = []
