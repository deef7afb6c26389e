"""AgentRun JSON to core objects and back, and nowhere else."""

__all__: list[str] = []
