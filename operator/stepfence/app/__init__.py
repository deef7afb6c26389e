"""Use cases over ports, shared by controller, gateway and local."""

__all__: list[str] = []
