"""`inv vm.check` on the laptop: its output, and the exit code of each connection failure."""

import json
import os
import subprocess
import sys

import pytest

from tests.support.machines.build_vm import REGISTRY, BuildVm
from tests.support.machines.network import USER, Network
from tests.support.paths import ROOT


def check(network: Network, *flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("INVOKE_")}
    settings = {"HOME": str(network.folder), "INVOKE_BUILD_HOST": "vm", **environment}
    done: subprocess.CompletedProcess[str] = network.laptop.run(
        *(sys.executable, "-m", "invoke", "vm.check", *flags), check=False, cwd=ROOT, env={**inherited, **settings}
    )
    assert "Traceback" not in done.stderr
    return done


def test_the_vm_is_described(module_network: Network) -> None:
    before = module_network.vm_sshd.logins()
    done = check(module_network, "--tmpdir", "/mnt")
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)  # this VM's engine is not running
    assert "sudo systemctl start docker" in done.stderr
    assert "user ubuntu in ubuntu; home" in done.stdout
    assert "free on tmpfs" in done.stdout
    assert module_network.vm_sshd.logins() == before + 1


@pytest.mark.parametrize(
    ("has_another_key", "host", "exit_code", "token"),
    [(True, "vm", 4, "changed"), (False, "nosuchuser@vm", 2, "'nosuchuser'"), (False, "ssh://vm:9", 3, "port 9")],
)
def test_each_kind_of_connection_failure_is_one_line_with_its_exit_code(
    module_network: Network, has_another_key: bool, host: str, exit_code: int, token: str
) -> None:
    """tests/system/ssh/test_ssh_entry.py has the failures of each kind."""
    module_network.write_known_hosts()
    if has_another_key:
        module_network.vm_sshd.replace_host_key()
    done = check(module_network, INVOKE_BUILD_HOST=host)
    assert (done.returncode, done.stdout) == (exit_code, "")
    assert token in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_engine_is_described_and_a_prune_frees_what_the_check_says(build_vm: BuildVm) -> None:
    build_vm.edit_bench("an old image")
    build_vm.inv("build")
    old = build_vm.docker("image", "inspect", "qlora-fleet:tiny", "--format", "{{.Id}}").stdout.strip()
    build_vm.docker("tag", old, f"{REGISTRY}/axtenancy/qlora-fleet:old")
    build_vm.edit_bench("a new image")
    build_vm.inv("build")
    checked = json.loads(build_vm.inv("vm.check", "--json").stdout)["engine"]
    planned = json.loads(build_vm.inv("vm.prune", "--dry-run", "--json").stdout)
    assert checked["storage_driver"] == "overlay2"
    assert old in checked["old_images"]
    assert planned["old_images"] == checked["old_images"]
    assert checked["prunable_bytes"] == planned["unused_cache_bytes"] + sum(planned["old_images"].values()) > 0
    assert "nothing was removed; pass --yes" in build_vm.inv("vm.prune", code=4).stderr
    assert "freed " in build_vm.inv("vm.prune", "--yes").stdout
    assert build_vm.docker("image", "inspect", old, check=False).returncode != 0
    left = json.loads(build_vm.inv("vm.check", "--json").stdout)["engine"]
    assert (left["old_images"], left["unused_cache_bytes"]) == ({}, 0)
    build_vm.docker("image", "inspect", "qlora-fleet:tiny", "standin:base")


def test_vm_check_ends_as_a_build_would(build_vm: BuildVm) -> None:
    client = build_vm.folder / "docker-of-podman"
    client.write_text("#!/bin/sh\necho 'Error: unrecognized command `podman system dial-stdio`' >&2; exit 125\n")
    client.chmod(0o755)
    build_vm.edit_bench("a check")
    for settings in (
        {"IMAGE_CLIENT": "/nowhere/docker"},
        {"IMAGE_CLIENT": str(client)},
        {"IMAGE_ENGINE": "unix:///nowhere.sock"},
        {},
    ):
        if not settings:
            build_vm.set_docker_group()
        ends = [build_vm.inv_unchecked(task, **settings) for task in ("vm.check", "build", "push")]
        assert len({(done.returncode, done.stderr.partition(";")[0]) for done in ends}) == 1, settings
        assert ends[0].returncode == (3 if "IMAGE_ENGINE" in settings else 2)
    build_vm.set_docker_group(USER)
