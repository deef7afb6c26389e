"""The controller: kopf at the edge, a work queue, a level-triggered reconcile."""

__all__: list[str] = []
