"""How a cluster is chosen and had, with fakes on PATH where this machine need not have the real thing."""

import os
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import choice
from e2e.choice import Source, acquire, choose
from e2e.cluster import Cluster, ClusterError, build, images

KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: fake
contexts: [{name: fake, context: {cluster: fake, user: fake}}]
clusters: [{name: fake, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: fake, user: {}}]
"""
FAKE_KIND = """\
#!/bin/sh
echo "$*" >> "$CALLS/kind"
case "$1 $2" in
"create cluster")
    for word in "$@"; do
        case "$word" in --kubeconfig=*) cp "$CALLS/kubeconfig" "${word#--kubeconfig=}" ;; esac
    done ;;
esac
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH on which there is nothing but the shell's tools and what the test puts there, and a cache of its own."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("CALLS", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(choice.NAMED_BY, raising=False)
    monkeypatch.delenv(choice.LOADED_BY, raising=False)
    (tmp_path / "kubeconfig").write_text(KUBECONFIG)
    return folder


def fake(folder: Path, name: str, script: str) -> None:
    program = folder / name
    program.write_text(textwrap.dedent(script))
    program.chmod(0o755)


def calls(tmp_path: Path, name: str) -> list[str]:
    recorded = tmp_path / name
    return recorded.read_text().splitlines() if recorded.exists() else []


def fake_docker(folder: Path, *, runs: bool) -> None:
    fake(folder, "docker", f'#!/bin/sh\necho "$*" >> "$CALLS/docker"\nexit {0 if runs else 1}\n')


def test_a_named_kubeconfig_wins_and_docker_is_not_even_asked(path: Path, tmp_path: Path) -> None:
    fake_docker(path, runs=True)
    assert choose({choice.NAMED_BY: str(tmp_path / "kubeconfig")}) is Source.NAMED
    assert calls(tmp_path, "docker") == []


def test_a_named_kubeconfig_that_is_not_there_is_an_error_that_names_the_variable(path: Path, tmp_path: Path) -> None:
    fake_docker(path, runs=True)
    with pytest.raises(ClusterError, match=choice.NAMED_BY):
        choose({choice.NAMED_BY: str(tmp_path / "nowhere")})


def test_an_empty_name_names_nothing(path: Path) -> None:
    fake_docker(path, runs=False)
    assert choose({choice.NAMED_BY: ""}) is Source.LOCAL


def test_a_kubeconfig_is_never_guessed(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    (home / ".kube").mkdir(parents=True)
    (home / ".kube" / "config").write_text(KUBECONFIG)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("KUBECONFIG", str(home / ".kube" / "config"))
    fake_docker(path, runs=False)
    assert choose(os.environ) is Source.LOCAL
    fake_docker(path, runs=True)
    assert choose(os.environ) is Source.KIND


def test_kind_is_chosen_when_docker_runs(path: Path, tmp_path: Path) -> None:
    fake_docker(path, runs=True)
    assert choose({}) is Source.KIND
    assert calls(tmp_path, "docker") == ["info"]


def test_a_docker_client_without_an_engine_is_no_docker(path: Path, tmp_path: Path) -> None:
    fake_docker(path, runs=False)
    assert choose({}) is Source.LOCAL
    assert calls(tmp_path, "docker") == ["info"]


def test_without_docker_the_cluster_is_our_own(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "find", lambda _name: None)
    assert choose({}) is Source.LOCAL


def test_kind_makes_two_nodes_loads_archives_and_is_deleted_afterwards(path: Path, tmp_path: Path) -> None:
    fake_docker(path, runs=True)
    fake(path, "kind", FAKE_KIND)
    fake(path, "kubectl", "#!/bin/sh\n")
    with acquire("mine", {}) as target:
        assert target.source is Source.KIND
        assert target.kubeconfig.read_text() == KUBECONFIG
        assert target.kubectl == (str(path / "kubectl"), f"--kubeconfig={target.kubeconfig}")
        assert target.faults is None
        config = next(word for word in calls(tmp_path, "kind")[1].split() if word.endswith(".yaml"))
        assert Path(config).read_text().count("- role:") == 2
        target.load(tmp_path / "image.tar")
    listed, created, loaded, deleted = calls(tmp_path, "kind")
    assert listed == "get clusters"
    assert created.startswith("create cluster --name=mine --kubeconfig=")
    assert loaded == f"load image-archive --name mine {tmp_path / 'image.tar'}"
    assert deleted.startswith("delete cluster --name=mine")


def test_kind_is_deleted_when_the_use_of_it_fails(path: Path, tmp_path: Path) -> None:
    fake_docker(path, runs=True)
    fake(path, "kind", FAKE_KIND)
    fake(path, "kubectl", "#!/bin/sh\n")
    with pytest.raises(ZeroDivisionError), acquire("mine", {}):
        raise ZeroDivisionError
    assert calls(tmp_path, "kind")[-1].startswith("delete cluster --name=mine")


def test_kind_is_left_running_when_it_is_to_be_kept(path: Path, tmp_path: Path) -> None:
    fake_docker(path, runs=True)
    fake(path, "kind", FAKE_KIND)
    fake(path, "kubectl", "#!/bin/sh\n")
    with acquire("mine", {}, keep=True):
        pass
    assert not any(call.startswith("delete") for call in calls(tmp_path, "kind"))


def test_kind_leaves_nothing_in_the_folder_where_the_tests_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_docker(path, runs=True)
    fake(path, "kind", FAKE_KIND)
    fake(path, "kubectl", "#!/bin/sh\n")
    stand = tmp_path / "stand"
    stand.mkdir()
    monkeypatch.chdir(stand)
    with acquire("mine", {}):
        pass
    assert list(stand.iterdir()) == []


def test_images_reach_a_named_cluster_by_the_command_that_the_user_names(path: Path, tmp_path: Path) -> None:
    fake(path, "kubectl", "#!/bin/sh\n")
    fake(path, "import-image", '#!/bin/sh\necho "$*" >> "$CALLS/import"\n')
    named = {choice.NAMED_BY: str(tmp_path / "kubeconfig"), choice.LOADED_BY: "import-image --into cluster"}
    with acquire("mine", named) as target:
        assert target.source is Source.NAMED
        target.load(tmp_path / "image.tar")
    assert calls(tmp_path, "import") == [f"--into cluster {tmp_path / 'image.tar'}"]


@pytest.fixture
def short_cache(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cache whose path leaves room for the names of sockets."""
    with tempfile.TemporaryDirectory(prefix="sf") as folder:
        monkeypatch.setenv("XDG_CACHE_HOME", folder)
        yield


@pytest.mark.usefixtures("short_cache")
def test_a_named_cluster_of_our_own_making_keeps_its_fault_verbs(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = build.cache_root() / "clusters" / "hands-on"
    (folder / "pki").mkdir(parents=True)
    (folder / "instance.json").write_text('{"name": "hands-on", "nodes": 2, "slot": 0}')
    kubeconfig = folder / "pki" / "admin.kubeconfig"
    kubeconfig.write_text(KUBECONFIG)
    attached: list[str] = []

    class Attached:
        def __init__(self) -> None:
            self.kubeconfig = kubeconfig
            self.load_image = print

        def kubectl_command(self) -> list[str]:
            return ["kubectl"]

    def attach(name: str) -> Attached:
        attached.append(name)
        return Attached()

    monkeypatch.setattr(Cluster, "attach", attach)
    with acquire("mine", {choice.NAMED_BY: str(kubeconfig)}) as target:
        assert target.faults is not None
    assert attached == ["hands-on"]
