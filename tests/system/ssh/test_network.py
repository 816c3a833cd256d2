"""The network itself: the machines are apart, the cables can be cut, and nothing stays behind."""

from pathlib import Path

import pytest

from tests.support.machines.network import VM, Network, running_network


@pytest.fixture
def network(network_of_module: Network) -> Network:
    network_of_module.cable.mend()
    return network_of_module


def test_three_machines_reach_each_other_over_ssh_and_are_gone_afterwards() -> None:
    with running_network() as network:
        folder, pid = network.folder, network.vm.pid
        for name in ("vm", "far-vm", "farther-vm"):
            said = network.laptop.run("ssh", "-oBatchMode=yes", name, "hostname; whoami; pwd").stdout
            assert said.split() == ["vm", "ubuntu", str(network.home)]
        assert network.vm_sshd.logins() == 3
        for machine in (network.vm, network.laptop):
            machine.start("sleep", "300", start_new_session=True)
    assert not folder.exists()
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("how", ["down", "drop"])
def test_a_cut_cable_carries_nothing_and_a_mended_one_does(network: Network, how: str) -> None:
    ssh = ("ssh", "-oBatchMode=yes", "-oConnectTimeout=1", VM, "true")
    network.cable.cut(how)  # type: ignore[arg-type]
    assert network.laptop.run(*ssh, check=False).returncode == 255
    network.cable.mend()
    assert network.laptop.run(*ssh, check=False).returncode == 0


def test_a_killed_session_ends_the_client_and_the_server_takes_the_next_one(network: Network) -> None:
    client = network.laptop.start("ssh", "-oBatchMode=yes", "vm", "echo up; sleep 300", stdout=-1, stderr=-3)
    assert client.stdout.readline() == b"up\n"
    assert network.vm_sshd.kill_sessions() == 2  # sshd's monitor and the process it keeps for the user
    assert client.wait(30) == 255
    client.stdout.close()
    assert network.laptop.run("ssh", "-oBatchMode=yes", "vm", "echo back").stdout == "back\n"


def test_a_small_disk_of_the_vm_is_full_when_it_is_full(network: Network) -> None:
    network.vm.small_disk("/mnt/small", megabytes=8, owner="ubuntu")
    done = network.vm.run("dd", "if=/dev/zero", "of=/mnt/small/x", "bs=64k", user="ubuntu", check=False)
    assert "No space left on device" in done.stderr
    assert not Path("/mnt/small").exists()
