"""The test network: separate machines, cables that can be cut, and a complete cleanup."""

from pathlib import Path

import pytest

from tests.support.machines.network import VM, Network, running_network


@pytest.fixture
def network(module_network: Network) -> Network:
    module_network.cable.repair()
    return module_network


def test_three_machines_connect_over_ssh_and_are_removed_afterwards() -> None:
    with running_network() as network:
        folder, pid = network.folder, network.vm.pid
        for name in ("vm", "far-vm", "farther-vm"):
            output = network.laptop.run("ssh", "-oBatchMode=yes", name, "hostname; whoami; pwd").stdout
            assert output.split() == ["vm", "ubuntu", str(network.home)]
        assert network.vm_sshd.logins() == 3
        for machine in (network.vm, network.laptop):
            machine.start("sleep", "300", start_new_session=True)
    assert not folder.exists()
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("how", ["down", "drop"])
def test_a_cut_cable_carries_nothing_and_a_repaired_one_does(network: Network, how: str) -> None:
    ssh = ("ssh", "-oBatchMode=yes", "-oConnectTimeout=1", VM, "true")
    network.cable.cut(how)  # type: ignore[arg-type]
    assert network.laptop.run(*ssh, check=False).returncode == 255
    network.cable.repair()
    assert network.laptop.run(*ssh, check=False).returncode == 0


def test_a_killed_session_ends_the_client_and_the_server_takes_the_next_one(network: Network) -> None:
    client = network.laptop.start("ssh", "-oBatchMode=yes", "vm", "echo up; sleep 300", stdout=-1, stderr=-3)
    assert client.stdout.readline() == b"up\n"
    assert network.vm_sshd.kill_sessions() == 2  # sshd's monitor and the process it keeps for the user
    assert client.wait(30) == 255
    client.stdout.close()
    assert network.laptop.run("ssh", "-oBatchMode=yes", "vm", "echo back").stdout == "back\n"


def test_a_small_disk_of_the_vm_can_be_filled(network: Network) -> None:
    network.vm.mount_small_disk("/mnt/small", megabytes=8, owner="ubuntu")
    completed = network.vm.run("dd", "if=/dev/zero", "of=/mnt/small/x", "bs=64k", user="ubuntu", check=False)
    assert "No space left on device" in completed.stderr
    assert not Path("/mnt/small").exists()
