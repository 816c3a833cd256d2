"""The ground itself: the machines are apart, the cables can be cut, and nothing stays behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.machines.network import VM, Ground, made


def test_three_machines_reach_each_other_over_ssh_and_are_gone_afterwards() -> None:
    with made() as ground:
        folder, pid = ground.folder, ground.vm.pid
        for name in ("vm", "far-vm", "farther-vm"):
            said = ground.laptop.run("ssh", "-oBatchMode=yes", name, "hostname; whoami; pwd").stdout
            assert said.split() == ["vm", "ubuntu", str(ground.home)]
        assert ground.vm_sshd.logins() == 3
        for machine in (ground.vm, ground.laptop):
            machine.start("sleep", "300", start_new_session=True)
    assert not folder.exists()
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("how", ["down", "drop"])
def test_a_cut_cable_carries_nothing_and_a_mended_one_does(ground: Ground, how: str) -> None:
    ssh = ("ssh", "-oBatchMode=yes", "-oConnectTimeout=1", VM, "true")
    ground.cable.cut(how)  # type: ignore[arg-type]
    assert ground.laptop.run(*ssh, check=False).returncode == 255
    ground.cable.mend()
    assert ground.laptop.run(*ssh, check=False).returncode == 0


def test_a_killed_session_ends_the_client_and_the_server_takes_the_next_one(ground: Ground) -> None:
    client = ground.laptop.start("ssh", "-oBatchMode=yes", "vm", "echo up; sleep 300", stdout=-1, stderr=-3)
    assert client.stdout.readline() == b"up\n"
    assert ground.vm_sshd.kill_sessions() == 2  # sshd's monitor and the process it keeps for the user
    assert client.wait(30) == 255
    client.stdout.close()
    assert ground.laptop.run("ssh", "-oBatchMode=yes", "vm", "echo back").stdout == "back\n"


def test_a_small_disk_of_the_vm_is_full_when_it_is_full(ground: Ground) -> None:
    ground.vm.small_disk("/mnt/small", megabytes=8, owner="ubuntu")
    done = ground.vm.run("dd", "if=/dev/zero", "of=/mnt/small/x", "bs=64k", user="ubuntu", check=False)
    assert "No space left on device" in done.stderr
    assert not Path("/mnt/small").exists()
