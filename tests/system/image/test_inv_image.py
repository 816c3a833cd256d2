"""`inv image.*` on a laptop: the image's content, its size, and archives for an air gap."""

import json
from pathlib import Path

from tests.support.machines.build_vm import OTHER_UID, OTHER_USER, BuildVm
from tests.support.machines.network import USER
from tests.support.thorough import only_thorough

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


def test_an_archive_can_be_loaded_and_is_refused_if_truncated(built_vm: BuildVm) -> None:
    folder, expected_id = f"{built_vm.tmpdir}/archives", image_id(built_vm)
    planned = json.loads(built_vm.inv("image.archive", folder, "--dry-run", "--json").stdout)
    assert (planned["kind"], planned["unpacked_bytes"] > 0) == ("image.archive.plan", True)
    assert not Path(folder).exists()
    done = built_vm.inv("image.archive", folder)
    (path,) = Path(folder).glob("*.tar.*[!6]")
    assert path.name in done.stdout
    built_vm.vm.run("sh", "-c", f"cd '{folder}' && sha256sum --check --quiet *.sha256")
    unchanged = path.stat().st_mtime_ns
    built_vm.inv("image.archive", folder)
    assert path.stat().st_mtime_ns == unchanged
    path.write_bytes(b"x" + path.read_bytes()[1:])  # the same size
    built_vm.inv("image.archive", folder)
    built_vm.vm.run("sh", "-c", f"cd '{folder}' && sha256sum --check --quiet *.sha256")
    built_vm.docker("rmi", "--force", IMAGE)
    assert json.loads(built_vm.inv("image.load", str(path), "--dry-run", "--json").stdout)["files"][0] == str(path)
    assert expected_id in built_vm.inv("image.load", str(path)).stdout
    assert image_id(built_vm) == expected_id
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    assert f"{path.name}.sha256; " in built_vm.inv("image.load", str(path), code=4).stderr
    path.unlink()
    assert f"{path}: not found" in built_vm.inv("image.load", str(path), code=4).stderr


def test_an_archive_in_a_folder_of_all_users_is_refused_where_another_user_prepared_it(built_vm: BuildVm) -> None:
    share = built_vm.create_shared_folder("archives-of-all")
    valuable = built_vm.network.home / "valuable"
    valuable.mkdir()
    built_vm.chown_to_user(valuable)
    built_vm.inv("image.archive", str(valuable))
    (path,) = valuable.glob("*.tar.*[!6]")
    path.write_text("content")
    path.with_name(f"{path.name}.sha256").unlink()
    for name in (path.name, f"{path.name}.sha256", f".{path.name}.part"):
        built_vm.run_as_other_user(f"touch '{share}/{name}'")
        refused = built_vm.inv("image.archive", str(share), code=4).stderr
        assert f"{share}/{name}: " in refused
        assert f"{OTHER_USER} (uid {OTHER_UID})" in refused
        built_vm.run_as_other_user(f"rm '{share}/{name}'")
    built_vm.run_as_other_user(f"ln -s '{valuable}' '{share}/mine'")
    refused = built_vm.inv("image.archive", f"{share}/mine", code=4).stderr
    assert f"{share}/mine: " in refused
    assert path.read_text() == "content"
    built_vm.inv("image.archive", str(share))
    # The rule of a build's share: no other user may exchange the files.
    (archived,) = share.glob("*.tar.*[!6]")
    for owner, mode, command in (
        ("root", "2775", ("image.archive", str(share))),
        (OTHER_USER, "755", ("image.load", str(archived))),
    ):
        built_vm.vm.run("sh", "-c", f"chown {owner}:{OTHER_UID} '{share}' && chmod {mode} '{share}'")
        refused = built_vm.inv(*command, code=4).stderr
        assert f"{share}: " in refused
        assert "run on the VM: sudo ch" in refused


@only_thorough
def test_without_other_compressors_an_archive_is_written_and_read_with_gzip(built_vm: BuildVm) -> None:
    folder = Path(f"{built_vm.tmpdir}/gzip")
    path = folder / "qlora-fleet-tiny.tar.gz"
    hidden = ("zstd", "pigz", "unpigz")
    built_vm.vm.run("sh", "-c", "".join(f"mount --bind /dev/null /usr/bin/{name}; " for name in hidden))
    try:
        assert f"{path} " in built_vm.inv("image.archive", str(folder)).stdout
        assert path.read_bytes()[:2] == b"\x1f\x8b"
        assert image_id(built_vm) in built_vm.inv("image.load", str(path)).stdout
    finally:
        built_vm.vm.run("sh", "-c", "".join(f"umount /usr/bin/{name}; " for name in hidden))


def test_an_archive_that_does_not_fit_leaves_nothing_behind(built_vm: BuildVm) -> None:
    built_vm.vm.mount_small_disk("/mnt/archives", megabytes=160, owner=USER)
    filler_bytes = "$(($(stat -f -c '%a*%S' /mnt/archives) - 5000000))"
    client = built_vm.gated_client("save", before=f"fallocate -l {filler_bytes} /mnt/archives/filler", is_open=True)
    done = built_vm.inv("image.archive", "/mnt/archives", code=3, IMAGE_CLIENT=client)
    assert "No space left on device" in done.stderr
    assert built_vm.vm.run("ls", "-A", "/mnt/archives").stdout.split() == ["filler", "lost+found"]
    built_vm.vm.run("rm", "/mnt/archives/filler")
    built_vm.inv("image.archive", "/mnt/archives")
