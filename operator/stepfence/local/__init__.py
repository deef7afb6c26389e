"""Stepfence without a cluster: the same core, use cases and gateway routes, runs in one SQLite file, workers as child processes."""

__all__: list[str] = []
