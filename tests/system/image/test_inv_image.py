"""`inv image.*` typed on a laptop: what is inside an image, how large it is, and how it crosses an air gap."""

import json
from pathlib import Path

from tests.support.machines.build_vm import BuildVm
from tests.support.machines.network import USER

IMAGE = "qlora-fleet:tiny"


def image_id(build_vm: BuildVm) -> str:
    return build_vm.docker("image", "inspect", IMAGE, "--format", "{{.Id}}").stdout.strip()


def test_the_image_runs_as_user_1000_with_a_read_only_root_and_no_network(built: BuildVm) -> None:
    words = ("run", "--rm", "--network=none", "--read-only", "--tmpfs=/tmp", IMAGE)
    said = built.docker(*words, "sh", "-c", "id -u; python -m bench list --suite quick | head -1; env").stdout.split(
        "\n"
    )
    assert said[0] == "1000"
    assert said[1].startswith("suite quick")
    assert {"HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1", "HOME=/workspace"} <= set(said)
    config = json.loads(built.docker("image", "inspect", IMAGE).stdout)[0]["Config"]
    assert config["Entrypoint"] == ["tini", "--"]
    assert "--health" in config["Healthcheck"]["Test"]
    assert built.docker(*words, "python", "/opt/qlora-fleet/selfcheck.py", "--health").returncode == 0


def test_no_layer_holds_a_cache_or_our_compiled_files(built: BuildVm) -> None:
    # What the base brings is the base's; everything else in these places would be a cache.
    find = (
        "find /var/cache/apt /var/lib/apt/lists /var/cache/pip /root /opt/qlora-fleet /wheels /locks -type f "
        "\\( -path '/opt/*' -not -name '*.pyc' -o -print \\) 2>/dev/null; true"
    )
    words = ("run", "--rm", "--network=none", "--user=0", "--entrypoint=sh")
    in_base = built.docker(*words, "standin:base", "-c", find).stdout.split()
    assert set(built.docker(*words, IMAGE, "-c", find).stdout.split()) - set(in_base) == set()


def test_verify_says_what_is_inside_and_what_does_not_work(built: BuildVm) -> None:
    # The small lock has no torch, so the last proof, a trial, fails; that it is tried is what this shows.
    done = built.inv("image.verify", code=1)
    assert "python -m bench selfcheck: the stack cannot be imported: No module named 'torch'" in done.stderr
    assert "tinystack 1.0" in done.stdout
    profiles = built.project / "image" / "profiles.yaml"
    text = profiles.read_text()
    profiles.write_text(
        text.replace("stack_bytes: 30000000\n  runs_on_cpu: true", "stack_bytes: 30000000\n  runs_on_cpu: false")
    )
    done = built.inv("image.verify")
    assert "no trial was run" in done.stdout
    assert f"{IMAGE}: intact" in done.stdout
    profiles.write_text(text)


def test_sizes_are_told_by_layer_and_for_push_pull_and_node(built: BuildVm) -> None:
    done = built.inv("image.size", "--mbps", "100", "--allocatable-gb", "0.1")
    assert "COPY bench /opt/qlora-fleet/bench" in done.stdout
    assert "an edit of bench pushes 0." in done.stdout
    assert "a node with 100 Mb/s pulls it in" in done.stdout
    assert "0.1 GB allocatable: does not fit" in done.stdout


def test_an_archive_is_verified_loads_again_and_is_refused_when_cut_short(built: BuildVm) -> None:
    folder, wanted = f"{built.tmpdir}/archives", image_id(built)
    done = built.inv("image.archive", folder)
    (path,) = Path(folder).glob("*.tar.*[!6]")
    assert path.name in done.stdout
    built.vm.run("sh", "-c", f"cd '{folder}' && sha256sum --check --quiet *.sha256")
    assert "holds this image already" in built.inv("image.archive", folder).stdout
    built.docker("rmi", "--force", IMAGE)
    assert wanted in built.inv("image.load", str(path)).stdout
    assert image_id(built) == wanted
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    assert "its sha256 is not the one in" in built.inv("image.load", str(path), code=4).stderr
    path.unlink()
    assert "not found" in built.inv("image.load", str(path), code=4).stderr


def test_docker_save_that_fails_behind_the_pipe_leaves_no_archive(built: BuildVm) -> None:
    broken = "echo 'Error response from daemon: something broke' >&2; exit 1"
    client, folder = built.gate("save", before=broken, is_open=True), f"{built.tmpdir}/broken"
    assert "something broke" in built.inv("image.archive", folder, code=1, IMAGE_CLIENT=client).stderr
    assert list(Path(folder).iterdir()) == []


def test_an_archive_that_does_not_fit_leaves_nothing_behind(built: BuildVm) -> None:
    built.vm.small_disk("/mnt/archives", megabytes=160, owner=USER)
    room = "$(($(stat -f -c '%a*%S' /mnt/archives) - 5000000))"
    client = built.gate("save", before=f"fallocate -l {room} /mnt/archives/somebody-elses", is_open=True)
    done = built.inv("image.archive", "/mnt/archives", code=3, IMAGE_CLIENT=client)
    assert "No space left on device" in done.stderr
    assert built.vm.run("ls", "-A", "/mnt/archives").stdout.split() == ["lost+found", "somebody-elses"]
    built.vm.run("rm", "/mnt/archives/somebody-elses")
    built.inv("image.archive", "/mnt/archives")
