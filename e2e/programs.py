"""Make what the tests against clusters need before any of them waits for it: `python -m e2e.programs`. From cold it takes many minutes."""

import os
import sys

from e2e import gitops
from e2e.choice import Source, choose
from e2e.cluster import ClusterError, build
from e2e.cluster.archive import pause_image
from e2e.cluster.images import build_image
from e2e.install import IMAGES, ROOT


def main() -> int:
    """Build, or find in the cache, first what most tests need; the exit code."""
    try:
        build.kube()
        if choose(os.environ) is Source.LOCAL:
            build.build_all()
            pause_image()
            for tag, target in IMAGES.items():
                build_image(ROOT, tag, target=target)
        gitops.build()
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
