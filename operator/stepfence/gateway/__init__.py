"""The gateway: the workers' only way to the ledger."""

__all__: list[str] = []
