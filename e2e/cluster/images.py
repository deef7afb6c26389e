"""Container images with and without Docker, from the same Dockerfile, into an archive that every node can import.

Without Docker buildah builds, on a base image of ours: a small Debian with Python, made once and cached. The pip settings and
the certificate authorities of this machine reach the build as secrets (`pip-conf`, `ca-bundle`), so no layer keeps them.
"""

import configparser
import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.build import cache_root, cached, locked
from e2e.cluster.errors import ClusterError
from e2e.cluster.node import architecture
from e2e.cluster.shell import attempt, find, provide, run, say

BASE_IMAGE = "localhost/stepfence-e2e-base:bookworm"
_SUITE = "bookworm"
_MIRROR = "http://deb.debian.org/debian"
_BASE_PACKAGES = ("python3", "python3-venv", "ca-certificates")
_BUILD_SECONDS = 1200.0
_KEPT_ARCHIVES = 2
_KEPT_UNTAGGED = 6
_BUILD_PACKAGES = {"buildah": "buildah", "debootstrap": "debootstrap", "unshare": "util-linux"}
_UNWANTED = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale", "usr/share/man", "var/log")
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


def build_image(context: Path, tag: str, *, target: str | None = None, dockerfile: Path | None = None) -> Path:
    """Build an image and return a docker-archive of it, named `tag` inside.

    Layers are cached, and an image that has not changed keeps its archive: a second call takes a second or two.

    Raises:
        ClusterError: no builder can be had, or the build fails; the message ends with the builder's words.
    """
    dockerfile = dockerfile or context / "Dockerfile"
    with _build_secrets() as secrets:
        common = ["--file", str(dockerfile), "--tag", tag, *secrets, *(["--target", target] if target else [])]
        if docker_answers():
            return _build_with_docker(context, tag, common)
        return _build_with_buildah(context, tag, common)


def docker_answers() -> bool:
    """Whether a Docker daemon can be used here: the client alone does not build."""
    return bool(find("docker")) and attempt("docker", "info", seconds=20).returncode == 0


def _build_with_docker(context: Path, tag: str, common: list[str]) -> Path:
    arguments = [word for name in _PROXIES if name in os.environ for word in ("--build-arg", name)]
    environment = {**os.environ, "DOCKER_BUILDKIT": "1"}
    run("docker", "build", *common, *arguments, context, seconds=_BUILD_SECONDS, env=environment)
    identity = run("docker", "image", "inspect", "--format", "{{.Id}}", tag).strip()
    return _archive(tag, identity, lambda path: run("docker", "save", "--output", path, tag, seconds=300))


def _build_with_buildah(context: Path, tag: str, common: list[str]) -> Path:
    provide(_BUILD_PACKAGES)
    with _Buildah.opened() as buildah:
        base = buildah.ensure_base()
        options = ("--layers", "--isolation", "chroot", "--network", "host", "--build-arg", f"BASE={base}")
        buildah.run("bud", *options, *common, context, seconds=_BUILD_SECONDS)
        buildah.forget_old_layers()
        identity = buildah.run("images", "--quiet", "--no-trunc", tag).split()[0]
        return _archive(tag, identity, lambda path: buildah.run("push", tag, f"docker-archive:{path}:{tag}", seconds=300))


def _archive(tag: str, identity: str, write: Callable[[Path], str]) -> Path:
    folder = cache_root() / "images" / "built" / tag.replace("/", "_").replace(":", "_")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{identity.removeprefix('sha256:')[:24]}.tar"
    if not path.exists():
        draft = folder / f".{os.getpid()}.tar"
        with contextlib.ExitStack() as cleanup:
            cleanup.callback(draft.unlink, missing_ok=True)
            write(draft)
            draft.replace(path)
    path.touch()
    for old in sorted(folder.glob("*.tar"), key=lambda each: each.stat().st_mtime, reverse=True)[_KEPT_ARCHIVES:]:
        old.unlink(missing_ok=True)
    return path


@dataclass(frozen=True)
class _Buildah:
    """buildah with a storage of its own in the cache, in a mount namespace of its own: no mount of it outlives a call."""

    storage: Path
    driver: str

    @classmethod
    @contextmanager
    def opened(cls) -> "Iterator[_Buildah]":
        """The storage, held alone: buildah's own locks do not keep two builds of one tag apart."""
        storage = cache_root() / "buildah"
        with locked(storage / ".lock"):
            yield cls(storage, _storage_driver(storage))

    def run(self, *words: str | Path, seconds: float = 60) -> str:
        """One command of buildah."""
        settings = self.storage / "containers.conf"
        settings.write_text(f'[network]\nnetwork_config_dir = "{self.storage / "network"}"\n')  # else a lock file in /etc
        environment = {**os.environ, "CONTAINERS_CONF": str(settings)}
        places = ("--root", self.storage / self.driver, "--runroot", self.storage / f"{self.driver}-run")
        command = ("unshare", "--mount", "buildah", *places, "--storage-driver", self.driver)
        return run(*command, *words, seconds=seconds, env=environment)

    def forget_old_layers(self) -> None:
        """Remove all but the newest images without a tag: earlier builds, whose layers serve as cache for a while.

        And the containers that builds leave when they are interrupted: nobody else builds here now, and they would hold their images.
        """
        self.run("rm", "--all", seconds=300)
        untagged = self.run("images", "--quiet", "--no-trunc", "--filter", "dangling=true").split()
        if old := untagged[_KEPT_UNTAGGED:]:
            self.run("rmi", *old, seconds=300)

    def ensure_base(self) -> str:
        """The tag of the base image, which is in the storage then."""
        root = base_root()
        tag = f"{BASE_IMAGE}-{root.parent.name}"
        if not self.run("images", "--quiet", "--filter", f"reference={tag}").strip():
            with tempfile.TemporaryDirectory() as folder:
                recipe = Path(folder) / "Dockerfile"
                recipe.write_text(f'FROM scratch\nADD {root.name} /\nCMD ["python3"]\n')
                self.run("bud", "--isolation", "chroot", "--file", recipe, "--tag", tag, root.parent, seconds=300)
        return tag


def base_root() -> Path:
    """The file system of the base image as a tar, cached."""
    contents = hashlib.sha256(repr((_BASE_PACKAGES, _UNWANTED)).encode()).hexdigest()[:8]
    key = f"{_SUITE}-{architecture()}-{contents}"
    return cached("images/base", key, _debootstrap) / "root.tar"


def _debootstrap(folder: Path) -> None:
    provide(_BUILD_PACKAGES)
    say(f"making a base image from Debian {_SUITE}: a minute, once")
    root = folder / "root"
    include = f"--include={','.join(_BASE_PACKAGES)}"
    mirror = os.environ.get("STEPFENCE_DEBIAN_MIRROR", _MIRROR)
    command = ("debootstrap", "--variant=minbase", include, _SUITE, root, mirror)
    run("unshare", "--mount", *command, seconds=_BUILD_SECONDS)
    for name in _UNWANTED:
        for path in (root / name).iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    (root / "var/cache/apt/archives/partial").mkdir(parents=True)
    run("tar", "--create", "--numeric-owner", "--one-file-system", "-C", root, "-f", folder / "root.tar", ".", seconds=300)
    shutil.rmtree(root)


def _storage_driver(storage: Path) -> str:
    """`overlay` where the kernel can lay one over the cache's file system, which `vfs` copies whole for each layer."""
    with tempfile.TemporaryDirectory(dir=storage) as folder:
        lower, upper, work, merged = (Path(folder) / name for name in ("lower", "upper", "work", "merged"))
        for path in (lower, upper, work, merged):
            path.mkdir()
        options = f"lowerdir={lower},upperdir={upper},workdir={work}"
        tried = attempt("unshare", "--mount", "mount", "-t", "overlay", "overlay", "-o", options, merged)
    return "overlay" if tried.returncode == 0 else "vfs"


@contextmanager
def _build_secrets() -> Iterator[list[str]]:
    """Flags that hand the build this machine's pip settings and certificate authorities."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "pip.conf"
        settings.write_text(_pip_settings())
        flags = ["--secret", f"id=pip-conf,src={settings}"]
        if bundle := _ca_bundle():
            flags += ["--secret", f"id=ca-bundle,src={bundle}"]
        yield flags


def _ca_bundle() -> Path | None:
    named = (os.environ.get(name) for name in ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"))
    files = [Path(name) for name in named if name] + [Path("/etc/ssl/certs/ca-certificates.crt")]
    return next((path for path in files if path.is_file()), None)


def _pip_settings() -> str:
    """A pip.conf that says what pip's files and environment say here, but for what names files of this machine."""
    parser = configparser.RawConfigParser()
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    files = [Path("/etc/pip.conf"), home / "pip" / "pip.conf", Path(os.environ.get("PIP_CONFIG_FILE") or "/dev/null")]
    try:
        parser.read(files)
    except configparser.Error as wrong:
        raise ClusterError(f"pip's settings cannot be read: {wrong}") from wrong
    settings = dict(parser["global"]) if parser.has_section("global") else {}
    for name, value in os.environ.items():
        if name.startswith("PIP_") and name != "PIP_CONFIG_FILE":
            settings[name.removeprefix("PIP_").lower().replace("_", "-")] = value
    kept = {key: value for key, value in settings.items() if not value.startswith("/")}
    return "[global]\n" + "".join(f"{key} = {' '.join(value.split())}\n" for key, value in kept.items())
