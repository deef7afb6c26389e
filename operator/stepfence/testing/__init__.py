"""Shipped test helpers: memory gateway, fake clock, builders."""

__all__: list[str] = []
