"""Pure: no clock, no I/O, no logging. Every decision about a run is made here."""

__all__: list[str] = []
