"""Upload of small folders by the OpenSSH client from laptop to VM, with rsync and without."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote.hosts.base import CommandFailed, HostKeyRefused, HostUnreachable
from remote.hosts.ssh import rsync
from tests.support.machines.network import Network
from tests.support.machines.ssh_tools import from_laptop, run, running_in_thread, wait_for

ODD_NAMES = ["plain", "with space", "it's", '"', "$HOME", "-rf", "deep/er/file", "new\nline", "ü日本", "empty", "*"]


@pytest.fixture(params=["rsync", "tar"])
def method(request: pytest.FixtureRequest, module_network: Network) -> Iterator[str]:
    """Both transfer methods: with rsync, and without rsync on the VM."""
    if request.param == "rsync":
        yield "rsync"
        return
    module_network.vm.run("mount", "--bind", "/dev/null", "/usr/bin/rsync")
    yield "tar"
    module_network.vm.run("umount", "/usr/bin/rsync")


@pytest.fixture
def network(module_network: Network) -> Network:
    module_network.cable.repair()
    module_network.write_known_hosts()
    return module_network


def fill(folder: Path, size: int = 1000) -> dict[str, bytes]:
    rng, content = random.Random(1), {}
    for name in ODD_NAMES:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content[name] = b"" if name == "empty" else rng.randbytes(size)
        path.write_bytes(content[name])
    return content


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["vm", "farther-vm"])
def test_a_folder_is_uploaded_and_a_second_time_only_its_changes(
    network: Network, tmp_path: Path, method: str, name: str
) -> None:
    content, target = fill(tmp_path / "so urce"), f"{network.home}/it's a {method} {name}"
    reports, second_reports = list[rsync.UploadProgress](), list[rsync.UploadProgress]()
    with from_laptop(network, name) as host:
        rsync.push_folder(host, tmp_path / "so urce", target, timeout_sec=60.0, on_progress=reports.append)
        assert {report.percent is not None for report in reports} == {method == "rsync"}
        assert tree(Path(target)) == content
        assert reports[-1].byte_count >= sum(map(len, content.values()))
        rsync.push_folder(host, tmp_path / "so urce", target, timeout_sec=60.0, on_progress=second_reports.append)
        assert not any(report.byte_count for report in second_reports)

        Path(target, "plain").write_bytes(b"newer and longer than it was" * 99)
        rsync.push_folder(host, tmp_path / "so urce", target, timeout_sec=60.0)
        assert tree(Path(target)) == content


def test_a_cable_cut_during_a_transfer_is_an_error_and_the_same_call_resumes(
    network: Network, tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sshd sessions are killed, so that the test need not wait for ServerAliveInterval's 30 s."""
    monkeypatch.setattr(rsync, "_STALL_TIMEOUT_SEC", 5)
    source, target = tmp_path / "source", network.home / f"cut-{method}"
    source.mkdir()
    content = {str(n): random.Random(n).randbytes(20 << 20) for n in range(2)}
    for name, data in content.items():
        (source / name).write_bytes(data)

    def arrived_bytes() -> int:
        return sum(path.stat().st_size for path in target.rglob("*") if path.is_file())

    def cut() -> None:
        wait_for(lambda: arrived_bytes() > 24 << 20, "half of it")
        network.vm_sshd.kill_sessions()

    with from_laptop(network) as host:
        network.laptop.run("tc", "qdisc", "add", "dev", network.cable.card, "root", "tbf", "rate", "200mbit",
                          "burst", "256k", "latency", "50ms")  # fmt: skip
        try:
            with running_in_thread(cut), pytest.raises(HostUnreachable, match=r"^vm: "):
                rsync.push_folder(host, source, str(target), timeout_sec=120.0)
        finally:
            network.laptop.run("tc", "qdisc", "del", "dev", network.cable.card, "root")
        before = network.cable.sent_bytes()
        rsync.push_folder(host, source, str(target), timeout_sec=120.0)
    assert tree(target) == content
    sent_bytes = network.cable.sent_bytes() - before
    assert sent_bytes < (22 << 20 if method == "tar" else 20 << 20)  # 40 MiB in all, 24 had arrived


def test_a_full_disk_is_named_and_the_same_call_resumes_with_free_space(
    network: Network, tmp_path: Path, method: str
) -> None:
    disk = f"/mnt/small-{method}"
    network.vm.mount_small_disk(disk, megabytes=8, owner="ubuntu")
    source = tmp_path / "source"
    source.mkdir()
    for n in range(3):
        (source / str(n)).write_bytes(random.Random(n).randbytes(2 << 20))
    network.vm.run("dd", "if=/dev/zero", f"of={disk}/in the way", "bs=1M", "count=3", user="ubuntu")
    with from_laptop(network) as host:
        with pytest.raises(rsync.NoSpace, match=rf"vm: {disk}/model: "):
            rsync.push_folder(host, source, f"{disk}/model", timeout_sec=60.0)
        run(host, "rm", f"{disk}/in the way")
        rsync.push_folder(host, source, f"{disk}/model", timeout_sec=60.0)
        remote_digest = run(host, "sh", "-c", f"cat {disk}/model/* | sha256sum").stdout
    local_digest = network.laptop.run("sh", "-c", f"cat {source}/* | sha256sum").stdout
    assert remote_digest.decode() == local_digest


@pytest.mark.usefixtures("method")
def test_a_missing_source_and_an_unwritable_target_are_errors(network: Network, tmp_path: Path) -> None:
    with from_laptop(network) as host:
        with pytest.raises(FileNotFoundError):
            rsync.push_folder(host, tmp_path / "missing", f"{network.home}/x", timeout_sec=60.0)
        with pytest.raises(CommandFailed, match="Permission denied"):
            rsync.push_folder(host, tmp_path, "/usr/not-ours", timeout_sec=60.0)


def test_a_transfer_checks_host_keys_as_strictly_as_a_command(network: Network, tmp_path: Path) -> None:
    fill(tmp_path / "source")
    network.known_hosts.write_text("")
    with from_laptop(network) as host:
        with pytest.raises(HostKeyRefused):
            rsync.push_folder(host, tmp_path / "source", f"{network.home}/never", timeout_sec=60.0)
        network.write_known_hosts()
        run(host, "true")
        # The client itself also refuses an unknown key, although the connection is already trusted.
        network.known_hosts.write_text("")
        with pytest.raises(HostKeyRefused, match="Host key verification failed"):
            rsync.push_folder(host, tmp_path / "source", f"{network.home}/never", timeout_sec=60.0)
    assert not (network.home / "never" / "plain").exists()
