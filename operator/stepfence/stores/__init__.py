"""Implementations of the run store."""

__all__: list[str] = []
