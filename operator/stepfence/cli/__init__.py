"""The command line: `stepfence …`."""

__all__: list[str] = []
