"""A share where any user may write (mode 1777), and paths of another user on it: two real users of the VM."""

import shutil
from pathlib import Path

import pytest

from tests.support.machines.build_vm import EXCHANGES, MODEL, OTHER_UID, OTHER_USER, BuildVm

pytestmark = pytest.mark.timeout(600)
PLANTED = {
    "a folder with a link to valuable files": "mkdir -m 777 '{ours}'; ln -s '{outside}' '{ours}/context'",
    "a link to valuable files": "ln -s '{outside}' '{ours}'",
}


def test_a_work_directory_of_another_user_is_refused_by_every_task_and_links_in_it_are_not_followed(
    build_vm: BuildVm,
) -> None:
    build_vm.edit_bench("a shared work directory")
    outside = build_vm.network.home / "outside"
    outside.mkdir()
    (outside / "thesis.tex").write_text("content")
    build_vm.chown_to_user(outside)
    jobs = build_vm.job_folders()
    build_vm.vm.add_user(OTHER_USER, uid=OTHER_UID)
    for number, (case, script) in enumerate(PLANTED.items()):
        share = build_vm.folder / f"share-{number}"
        share.mkdir()
        share.chmod(0o1777)
        ours = share / "qlora-fleet"
        build_vm.vm.run("sh", "-euc", script.format(ours=ours, outside=outside), user=OTHER_USER)
        for command in (("build", "--dry-run"), ("model.fetch", "--model", "org/name"))[number:]:
            refused = build_vm.inv_refused(*command, "--tmpdir", str(share), code=4)
            assert f"{ours}: " in refused, case
            assert f"{OTHER_USER} (uid {OTHER_UID})" in refused
    assert (outside / "thesis.tex").read_text() == "content"
    assert build_vm.job_folders() == jobs


def test_our_folders_on_the_vm_are_private_with_any_umask_and_existing_ones_are_checked(build_vm: BuildVm) -> None:
    home, start_file = build_vm.network.home, build_vm.network.home / ".bashrc"
    ours, on_share = home / ".qlora-fleet", Path(build_vm.tmpdir, "qlora-fleet")
    for folder in (ours, on_share):
        shutil.rmtree(folder, ignore_errors=True)
    start_file.write_text("umask 000\n")
    try:
        build_vm.edit_bench("without a umask")
        build_vm.inv("build")
    finally:
        start_file.unlink()
    assert [folder.stat().st_mode & 0o777 for folder in (ours, on_share)] == [0o700, 0o700]
    assert [path for folder in (ours, on_share) for path in folder.rglob("*") if path.lstat().st_mode & 0o022
            and not path.is_symlink()] == []  # fmt: skip
    ours.chmod(0o777)  # another user may have planted a program
    for command in (("push",), ("model.fetch", "--model", "org/name")):
        assert f"chmod 700 {ours}" in build_vm.inv(*command, code=4).stderr
    ours.chmod(0o700)
    home.chmod(0o500)
    shutil.rmtree(ours)
    try:
        refused = build_vm.inv("push", code=2).stderr
        assert f"{ours}: Permission denied; " in refused
    finally:
        home.chmod(0o755)


def test_an_image_of_other_files_than_were_sent_is_not_built(build_vm: BuildVm) -> None:
    build_vm.put_model()
    flags = build_vm.model_flags(MODEL)
    build_vm.inv(*flags, "build")
    before = build_vm.docker("image", "inspect", "qlora-fleet:tiny", "--format", "{{.Id}}").stdout
    context = f"{build_vm.tmpdir}/qlora-fleet/context"
    for name, script in EXCHANGES.items():
        client = build_vm.gated_client("build", before=script.format(context=context), is_open=True)
        build_vm.edit_bench(f"an exchange: {name}")
        if name == "bytes of the weights":  # the engine reads archives again whose time changed
            for path in Path(context, "models").glob("*.tar"):
                path.unlink()
        done = build_vm.inv(*flags, "build", code=4, IMAGE_CLIENT=client)
        assert f"{context}: " in done.stderr, name
        assert "`inv build`" in done.stderr
        assert build_vm.docker("image", "inspect", "qlora-fleet:tiny", "--format", "{{.Id}}").stdout == before
        shutil.rmtree(f"{context}.ours", ignore_errors=True)
    assert "is built" in build_vm.inv(*flags, "build").stdout
