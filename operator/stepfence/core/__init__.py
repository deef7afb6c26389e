"""The pure core: no clock, no I/O, no logging."""

__all__: list[str] = []
