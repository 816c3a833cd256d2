"""`inv image.*` on a laptop: the image's content, archives for an air gap."""

import json

from tests.support.machines.build_vm import DOCKER, OTHER_UID, BuildVm
from tests.support.machines.network import USER

IMAGE = "qlora-fleet:tiny"


def test_the_image_runs_as_user_1000_with_a_read_only_root_and_no_network_and_holds_no_cache(built_vm: BuildVm) -> None:
    command = ("run", "--rm", "--network=none", "--read-only", "--tmpfs=/tmp", IMAGE)
    output = built_vm.docker(
        *command, "sh", "-c", "id -u; python -c 'import tinystack; print(tinystack.__version__)'; env"
    ).stdout.split("\n")
    assert {"HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1", "HOME=/workspace"} <= set(output)
    assert {"BNB_CUDA_VERSION=121", "TRANSFORMERS_CACHE=/models"} <= set(output)
    assert output[:2] == ["1000", "1.0"]
    config = json.loads(built_vm.docker("image", "inspect", IMAGE).stdout)[0]["Config"]
    assert config["Entrypoint"] == ["tini", "--"]
    assert "--health" in config["Healthcheck"]["Test"]
    assert built_vm.docker(*command, "python", "/opt/qlora-fleet/selfcheck.py", "--health").returncode == 0
    # Files of the base are ignored; any other file in these folders would be a cache.
    find = (
        "find /var/cache/apt /var/lib/apt/lists /var/cache/pip /root /opt/qlora-fleet /wheels /locks -type f "
        "\\( -path '/opt/*' -not -name '*.pyc' -o -print \\) 2>/dev/null; true"
    )
    command = ("run", "--rm", "--network=none", "--user=0", "--entrypoint=sh")
    in_base = built_vm.docker(*command, "standin:base", "-c", find).stdout.split()
    assert set(built_vm.docker(*command, IMAGE, "-c", find).stdout.split()) - set(in_base) == set()


def test_verify_reports_the_content_and_the_faults(built_vm: BuildVm) -> None:
    # The small lock has neither torch nor pyarrow, so the last check, a trial, fails; the test shows that it is run.
    verified = json.loads(built_vm.inv("image.verify", "--json", code=1).stdout)
    assert (verified["kind"], verified["error"]["exit_code"]) == ("image.verify", 1)
    (problem,) = verified["problems"]
    assert problem.startswith("python -m bench selfcheck: torch and its libraries cannot be imported: ")
    profiles = built_vm.project / "image" / "profiles.yaml"
    text = profiles.read_text()
    profiles.write_text(
        text.replace("stack_bytes: 30000000\n  runs_on_cpu: true", "stack_bytes: 30000000\n  runs_on_cpu: false")
    )
    done = built_vm.inv("image.verify")
    assert "its trial does not count" in done.stdout
    assert "tinystack 1.0" in done.stdout
    assert f"{IMAGE}: intact" in done.stdout
    profiles.write_text(text)


def test_an_archive_is_loaded_by_standard_programs_and_one_that_does_not_fit_leaves_nothing(built_vm: BuildVm) -> None:
    folder, vm = "/mnt/archives", built_vm.vm
    vm.mount_small_disk(folder, megabytes=160, owner=USER)
    planned = json.loads(built_vm.inv("image.archive", folder, "--dry-run", "--json").stdout)
    assert (planned["kind"], planned["unpacked_bytes"] > 0) == ("image.archive.plan", True)
    vm.run("sh", "-c", f"fallocate -l $(($(stat -f -c '%a*%S' {folder}) - 5000000)) {folder}/filler")
    assert "No space left on device" in built_vm.inv("image.archive", folder, code=3).stderr
    assert vm.run("ls", "-A", folder).stdout.split() == ["filler", "lost+found"]
    vm.run("rm", f"{folder}/filler")
    done = built_vm.inv("image.archive", folder)
    (name,) = [name for name in vm.run("ls", folder).stdout.split() if ".tar" in name and not name.endswith(".sha256")]
    assert name in done.stdout
    built_vm.docker("rmi", "--force", IMAGE)
    unpack = "zstd -dc" if name.endswith(".zst") else "gzip -dc"
    load = f"cd '{folder}' && sha256sum --check --quiet *.sha256 && {unpack} {name} | {DOCKER} load"
    vm.run("sh", "-euc", load)
    identity = built_vm.docker("image", "inspect", IMAGE, "--format", "{{.Id}}").stdout.strip()
    assert identity == planned["image_id"]
    vm.run("sh", "-c", f"chown root:{OTHER_UID} {folder} && chmod 2775 {folder}")  # others could exchange the archive
    refused = built_vm.inv("image.archive", folder, code=4).stderr
    assert f"{folder}: " in refused
    assert "run on the VM: sudo ch" in refused
