"""`inv image.*` on a laptop: the image's content, archives for an air gap."""

import json
from pathlib import Path

from tests.support.machines.build_vm import DOCKER, OTHER_UID, OTHER_USER, REGISTRY, BuildVm
from tests.support.machines.network import USER

IMAGE = "qlora-fleet:tiny"


def image_id(build_vm: BuildVm) -> str:
    return build_vm.docker("image", "inspect", IMAGE, "--format", "{{.Id}}").stdout.strip()


def test_the_image_runs_as_user_1000_with_a_read_only_root_and_no_network(built_vm: BuildVm) -> None:
    command = ("run", "--rm", "--network=none", "--read-only", "--tmpfs=/tmp", IMAGE)
    output = built_vm.docker(
        *command, "sh", "-c", "id -u; python -c 'import tinystack; print(tinystack.__version__)'; env"
    ).stdout.split("\n")
    assert {"HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1", "HOME=/workspace"} <= set(output)
    assert {"BNB_CUDA_VERSION=121", "TRANSFORMERS_CACHE=/models"} <= set(output)
    assert output[0] == "1000"
    assert output[1] == "1.0"
    config = json.loads(built_vm.docker("image", "inspect", IMAGE).stdout)[0]["Config"]
    assert config["Entrypoint"] == ["tini", "--"]
    assert "--health" in config["Healthcheck"]["Test"]
    assert built_vm.docker(*command, "python", "/opt/qlora-fleet/selfcheck.py", "--health").returncode == 0


def test_no_layer_holds_a_cache_or_our_compiled_files(built_vm: BuildVm) -> None:
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


def test_an_archive_is_loaded_by_standard_programs_and_a_damaged_one_is_written_again(built_vm: BuildVm) -> None:
    folder, expected_id = f"{built_vm.tmpdir}/archives", image_id(built_vm)
    planned = json.loads(built_vm.inv("image.archive", folder, "--dry-run", "--json").stdout)
    assert (planned["kind"], planned["unpacked_bytes"] > 0) == ("image.archive.plan", True)
    assert not Path(folder).exists()
    done = built_vm.inv("image.archive", folder)
    (path,) = Path(folder).glob("*.tar.*[!6]")
    assert path.name in done.stdout
    unchanged = path.stat().st_mtime_ns
    built_vm.inv("image.archive", folder)
    assert path.stat().st_mtime_ns == unchanged
    path.write_bytes(b"x" + path.read_bytes()[1:])  # the same size
    built_vm.inv("image.archive", folder)
    built_vm.docker("rmi", "--force", IMAGE)
    unpack = {".zst": "zstd -dc", ".gz": "gzip -dc"}[path.suffix]
    load = f"cd '{folder}' && sha256sum --check --quiet *.sha256 && {unpack} {path.name} | {DOCKER} load"
    built_vm.vm.run("sh", "-euc", load)
    assert image_id(built_vm) == expected_id


def test_an_archive_in_a_folder_of_all_users_is_refused_where_another_user_prepared_it(built_vm: BuildVm) -> None:
    share = built_vm.create_shared_folder("archives-of-all")
    built_vm.inv("image.archive", str(share))
    (path,) = share.glob("*.tar.*[!6]")
    for name in (path.name, f"{path.name}.sha256", f".{path.name}.part"):
        (share / name).unlink(missing_ok=True)
        built_vm.run_as_other_user(f"touch '{share}/{name}'")
        refused = built_vm.inv("image.archive", str(share), code=4).stderr
        assert f"{share}/{name}: " in refused
        assert f"{OTHER_USER} (uid {OTHER_UID})" in refused
        built_vm.run_as_other_user(f"rm '{share}/{name}'")
    built_vm.vm.run("sh", "-c", f"chown root:{OTHER_UID} '{share}' && chmod 2775 '{share}'")
    refused = built_vm.inv("image.archive", str(share), code=4).stderr
    assert f"{share}: " in refused
    assert "run on the VM: sudo ch" in refused


def test_an_archive_that_does_not_fit_leaves_nothing_behind(built_vm: BuildVm) -> None:
    built_vm.vm.mount_small_disk("/mnt/archives", megabytes=160, owner=USER)
    filler_bytes = "$(($(stat -f -c '%a*%S' /mnt/archives) - 5000000))"
    client = built_vm.gated_client("save", before=f"fallocate -l {filler_bytes} /mnt/archives/filler", is_open=True)
    done = built_vm.inv("image.archive", "/mnt/archives", code=3, IMAGE_CLIENT=client)
    assert "No space left on device" in done.stderr
    assert built_vm.vm.run("ls", "-A", "/mnt/archives").stdout.split() == ["filler", "lost+found"]
    built_vm.vm.run("rm", "/mnt/archives/filler")
    built_vm.inv("image.archive", "/mnt/archives")


def test_a_prune_frees_what_its_plan_says(build_vm: BuildVm) -> None:
    build_vm.edit_bench("an old image")
    build_vm.inv("build")
    old = image_id(build_vm)
    build_vm.docker("tag", old, f"{REGISTRY}/axtenancy/qlora-fleet:old")
    build_vm.edit_bench("a new image")
    build_vm.inv("build")
    planned = json.loads(build_vm.inv("vm.prune", "--dry-run", "--json").stdout)
    assert old in planned["old_images"]
    assert planned["unused_cache_bytes"] > 0
    assert "nothing was removed; pass --yes" in build_vm.inv("vm.prune", code=4).stderr
    assert "freed " in build_vm.inv("vm.prune", "--yes").stdout
    assert build_vm.docker("image", "inspect", old, check=False).returncode != 0
    left = json.loads(build_vm.inv("vm.prune", "--dry-run", "--json").stdout)
    assert (left["old_images"], left["unused_cache_bytes"]) == ({}, 0)
    build_vm.docker("image", "inspect", IMAGE, "standin:base")
