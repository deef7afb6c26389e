"""Protocols that the use cases are written against."""

__all__: list[str] = []
