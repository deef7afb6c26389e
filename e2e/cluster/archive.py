"""Image archives made by hand, for images so small that no builder is worth installing for them."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

from e2e.cluster.build import cached, pause
from e2e.cluster.node import PAUSE_IMAGE, architecture


def pause_image() -> Path:
    """The docker-archive of the pod sandbox image, cached."""
    program = pause()
    key = f"{program.parent.name}-{architecture()}"
    return cached("images/pause", key, lambda folder: _write_pause(folder / "pause.tar", program)) / "pause.tar"


def _write_pause(path: Path, program: Path) -> None:
    layer = _tar({"pause": (program.read_bytes(), 0o755)})
    config = {
        "architecture": architecture(),
        "os": "linux",
        "config": {"Entrypoint": ["/pause"], "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [PAUSE_IMAGE], "Layers": ["layer.tar"]}]
    entries = {"config.json": json.dumps(config), "manifest.json": json.dumps(manifest)}
    files = {name: (text.encode(), 0o644) for name, text in entries.items()}
    path.write_bytes(_tar({"layer.tar": (layer, 0o644), **files}))


def _tar(files: dict[str, tuple[bytes, int]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, (content, mode) in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
