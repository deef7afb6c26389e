"""Programs built from Go modules, cached by content outside the tree.

The key of a build is a digest of everything that decides its result: sources, `go.mod`, `go.sum`, flags, environment and
the version of Go. A build goes to a folder of its own and is renamed into the cache when it is whole, under a lock on its
key: two builds at once, or one that dies, never leave half a program.
"""

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.errors import ClusterError, eventually
from e2e.cluster.shell import find, run, say

HERE = Path(__file__).parent
KUBERNETES_VERSION = "v1.36.3"
COREDNS = "github.com/coredns/coredns@v1.15.0"
KUBE_PROGRAMS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
    "kubelet",
    "kubectl",
)
_BUILD_SECONDS = 1800
_LOCK_SECONDS = 2.0 * _BUILD_SECONDS


def cache_root() -> Path:
    """The folder of everything that is built or kept outside the tree: `$XDG_CACHE_HOME/stepfence`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stepfence"


@contextmanager
def locked(path: Path, *, seconds: float = _LOCK_SECONDS) -> Iterator[None]:
    """Hold an exclusive lock on a file, which is made when it lacks. Freed by the kernel if this process dies.

    Raises:
        ClusterTimeout: another process holds it for longer than `seconds`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:

        def taken() -> bool:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

        eventually(f"lock on {path}", taken, seconds=seconds)
        yield


def cached(name: str, key: str, make: Callable[[Path], None]) -> Path:
    """The folder `<cache>/<name>/<key>`, filled by `make` (given an empty folder) unless it is there already."""
    home = cache_root() / name
    done = home / key
    if done.is_dir():
        return done
    with locked(home / f".{key}.lock"):
        if not done.is_dir():
            draft = Path(tempfile.mkdtemp(prefix=f".{key}.", dir=home))
            try:
                make(draft)
                draft.chmod(0o755)
                draft.rename(done)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
    return done


@dataclass(frozen=True)
class GoProgram:
    """One program: a module of ours (`source`) or a published one (`package`, as `path@version`), and its linker flags."""

    name: str
    source: Path | None = None
    package: str = ""
    ldflags: str = "-s -w"

    def build(self) -> Path:
        """The program's file in the cache, built first when it lacks.

        Raises:
            ClusterError: Go is missing, or the build fails; the message ends with the compiler's words.
        """
        folder = cached(f"bin/{self.name}", self._key(), self._build_into)
        return folder / self.name

    def _key(self) -> str:
        digest = hashlib.sha256()
        digest.update(run(_go(), "version", env=_environment(), cwd=self.source, seconds=600).encode())
        digest.update(f"\0{self.package}\0{self.ldflags}\0".encode())
        for path in sorted(self.source.iterdir()) if self.source else ():
            if path.suffix == ".go" or path.name in {"go.mod", "go.sum"}:
                digest.update(f"{path.name}\0".encode() + path.read_bytes() + b"\0")
        return digest.hexdigest()[:16]

    def _build_into(self, folder: Path) -> None:
        say(f"building {self.name} from Go modules into {cache_root()}: minutes the first time, then never again")
        flags = ("-trimpath", "-buildvcs=false", "-ldflags", self.ldflags)
        if self.source:
            run(
                *(_go(), "build", *flags, "-o", folder / self.name, "."),
                env=_environment(),
                cwd=self.source,
                seconds=_BUILD_SECONDS,
            )
        else:
            environment = {**_environment(), "GOBIN": str(folder)}
            run(_go(), "install", *flags, self.package, env=environment, cwd=folder, seconds=_BUILD_SECONDS)


def kube() -> Path:
    """The folder with the programs of Kubernetes and etcd, each by its own name."""
    major, minor = KUBERNETES_VERSION.removeprefix("v").split(".")[:2]
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    values = {"gitVersion": KUBERNETES_VERSION, "gitMajor": major, "gitMinor": minor}
    stamps = [f"-X {package}.{field}={value}" for package in packages for field, value in values.items()]
    program = GoProgram("kube", source=HERE / "kube", ldflags=" ".join(["-s", "-w", *stamps]))
    binary = program.build()
    for name in KUBE_PROGRAMS:
        link = binary.with_name(name)
        if not link.is_symlink():
            _link(link, binary.name)
    return binary.parent


def coredns() -> Path:
    """CoreDNS. It wants newer client libraries than Kubernetes, so it is a build of its own."""
    return GoProgram("coredns", package=COREDNS).build()


def pause() -> Path:
    """The program of the pod sandbox image, which only waits."""
    return GoProgram("pause", source=HERE / "pause").build()


def build_all() -> None:
    """Build every program that a cluster with nodes needs."""
    for build in (kube, coredns, pause):
        build()


def _link(link: Path, target: str) -> None:
    draft = link.with_name(f".{link.name}.{os.getpid()}")
    draft.symlink_to(target)
    draft.replace(link)


def _go() -> str:
    found = find("go", "/usr/local/go/bin:/usr/lib/go/bin")
    if not found:
        raise ClusterError("Go is not installed: any version since 1.21 will do, it fetches the one that is needed")
    return found


def _environment() -> dict[str, str]:
    # Static programs need no C compiler. `auto` lets an older Go fetch the one that go.mod names.
    return {"GOTOOLCHAIN": "auto", **os.environ, "CGO_ENABLED": "0"}
