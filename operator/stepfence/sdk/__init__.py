"""What workers import: small, few dependencies."""

__all__: list[str] = []
