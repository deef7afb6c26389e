"""Stepfence: restart-safe AI-agent runs on Kubernetes."""

__all__: list[str] = []
