"""Gigabytes in small: folders moved by the OpenSSH client between laptop and VM, with rsync and without."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote.hosts.host import CommandFailed, HostKeyRefused, HostUnreachable
from remote.ssh import rsync
from tests.support.machines.network import Network
from tests.support.machines.ssh_tools import from_laptop, meanwhile, run, wait_for

ODD_NAMES = ["plain", "with space", "it's", '"', "$HOME", "-rf", "deep/er/file", "new\nline", "ü日本", "empty", "*"]


@pytest.fixture(params=["rsync", "tar"])
def way(request: pytest.FixtureRequest, network_of_module: Network) -> Iterator[str]:
    """Both ways to move: as things are, and with no rsync on the VM."""
    if request.param == "rsync":
        yield "rsync"
        return
    network_of_module.vm.run("mount", "--bind", "/dev/null", "/usr/bin/rsync")
    yield "tar"
    network_of_module.vm.run("umount", "/usr/bin/rsync")


@pytest.fixture
def network(network_of_module: Network) -> Network:
    network_of_module.cable.mend()
    network_of_module.know_all()
    return network_of_module


def fill(folder: Path, size: int = 1000) -> dict[str, bytes]:
    chooser, content = random.Random(1), {}
    for name in ODD_NAMES:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content[name] = b"" if name == "empty" else chooser.randbytes(size)
        path.write_bytes(content[name])
    return content


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["vm", "farther-vm"])
def test_a_folder_goes_there_and_a_second_time_only_what_changed(
    network: Network, tmp_path: Path, way: str, name: str
) -> None:
    content, target = fill(tmp_path / "so urce"), f"{network.home}/it's a {way} {name}"
    heard, again = list[rsync.UploadProgress](), list[rsync.UploadProgress]()
    with from_laptop(network, name) as host:
        rsync.push_folder(host, tmp_path / "so urce", target, timeout_sec=60.0, on_progress=heard.append)
        assert {one.percent is not None for one in heard} == {way == "rsync"}
        assert tree(Path(target)) == content
        assert heard[-1].byte_count >= sum(map(len, content.values()))
        rsync.push_folder(host, tmp_path / "so urce", target, timeout_sec=60.0, on_progress=again.append)
        assert not any(one.byte_count for one in again)

        Path(target, "plain").write_bytes(b"newer and longer than it was" * 99)
        rsync.push_folder(host, tmp_path / "so urce", target, timeout_sec=60.0)
        assert tree(Path(target)) == content


def test_a_cable_cut_under_a_move_is_told_and_the_same_call_finishes_it(
    network: Network, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The card goes down and sshd's side is killed, so that nobody has to wait for ServerAliveInterval's 30 s."""
    monkeypatch.setattr(rsync, "_STALL_SEC", 5)
    source, target = tmp_path / "source", network.home / f"cut-{way}"
    source.mkdir()
    content = {str(n): random.Random(n).randbytes(20 << 20) for n in range(2)}
    for name, data in content.items():
        (source / name).write_bytes(data)

    def arrived() -> int:
        return sum(path.stat().st_size for path in target.rglob("*") if path.is_file())

    def cut() -> None:
        wait_for(lambda: arrived() > 24 << 20, "half of it")
        network.vm_sshd.kill_sessions()

    with from_laptop(network) as host:
        network.laptop.run("tc", "qdisc", "add", "dev", network.cable.card, "root", "tbf", "rate", "200mbit",
                          "burst", "256k", "latency", "50ms")  # fmt: skip
        try:
            with meanwhile(cut), pytest.raises(HostUnreachable, match="broke while files were moving"):
                rsync.push_folder(host, source, str(target), timeout_sec=120.0)
        finally:
            network.laptop.run("tc", "qdisc", "del", "dev", network.cable.card, "root")
        before = network.cable.sent_bytes()
        rsync.push_folder(host, source, str(target), timeout_sec=120.0)
    assert tree(target) == content
    again = network.cable.sent_bytes() - before
    assert again < (22 << 20 if way == "tar" else 20 << 20)  # 40 MiB in all, 24 were there


def test_a_full_disk_is_named_and_after_freeing_some_the_same_call_finishes(
    network: Network, tmp_path: Path, way: str
) -> None:
    disk = f"/mnt/small-{way}"
    network.vm.small_disk(disk, megabytes=8, owner="ubuntu")
    source = tmp_path / "source"
    source.mkdir()
    for n in range(3):
        (source / str(n)).write_bytes(random.Random(n).randbytes(2 << 20))
    network.vm.run("dd", "if=/dev/zero", f"of={disk}/in the way", "bs=1M", "count=3", user="ubuntu")
    with from_laptop(network) as host:
        with pytest.raises(rsync.NoSpace, match=f"vm: {disk}/model: no space left"):
            rsync.push_folder(host, source, f"{disk}/model", timeout_sec=60.0)
        run(host, "rm", f"{disk}/in the way")
        rsync.push_folder(host, source, f"{disk}/model", timeout_sec=60.0)
        said = run(host, "sh", "-c", f"cat {disk}/model/* | sha256sum").stdout
    here = network.laptop.run("sh", "-c", f"cat {source}/* | sha256sum").stdout
    assert said.decode() == here


@pytest.mark.usefixtures("way")
def test_what_is_not_there_and_what_may_not_be_written_are_said(network: Network, tmp_path: Path) -> None:
    with from_laptop(network) as host:
        with pytest.raises(FileNotFoundError):
            rsync.push_folder(host, tmp_path / "none", f"{network.home}/x", timeout_sec=60.0)
        with pytest.raises(CommandFailed, match="Permission denied"):
            rsync.push_folder(host, tmp_path, "/usr/not-ours", timeout_sec=60.0)


def test_bulk_checks_host_keys_as_strictly_as_commands_do(network: Network, tmp_path: Path) -> None:
    fill(tmp_path / "source")
    network.known_hosts.write_text("")
    with from_laptop(network) as host:
        with pytest.raises(HostKeyRefused):
            rsync.push_folder(host, tmp_path / "source", f"{network.home}/never", timeout_sec=60.0)
        network.know_all()
        run(host, "true")
        # The client alone, with the connection already trusted: the file it reads says yes to nobody either.
        network.known_hosts.write_text("")
        with pytest.raises(HostKeyRefused, match="Host key verification failed"):
            rsync.push_folder(host, tmp_path / "source", f"{network.home}/never", timeout_sec=60.0)
    assert not (network.home / "never" / "plain").exists()
