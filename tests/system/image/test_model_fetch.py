"""`inv model.fetch` from laptop to VM: the hub's real client, a fake hub with faults, real disks and connections."""

import hashlib
import json
import secrets
import shutil
import struct
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.machines.build_vm import BuildVm
from tests.support.machines.fake_hub import COMMIT, MODEL
from tests.support.machines.network import USER
from tests.support.machines.ssh_tools import wait_for
from tests.support.paths import ROOT

SECRET_MARK = secrets.token_hex(8)  # unique to this test run
TOKEN = f"hf_'{SECRET_MARK}' $HOME \"token\""
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def shard(name: str, floats: int) -> bytes:
    header = json.dumps({name: {"dtype": "F32", "shape": [floats], "data_offsets": [0, 4 * floats]}}).encode()
    return struct.pack("<Q", len(header)) + header + hashlib.sha256(name.encode()).digest() * (floats // 8)


class HubTestbed:
    """The build VM with a hub on it."""

    def __init__(self, build_vm: BuildVm) -> None:
        self.build_vm, self.hub = build_vm, build_vm.folder / "hub"
        folder = self.hub / "files"
        folder.mkdir(parents=True)
        files = {
            "config.json": b'{"model_type": "mistral"}',
            "tokenizer.json": b"{}",
            "README.md": b"not fetched",
            "pytorch_model.bin": b"a pickle" * 20_000,
            "consolidated.safetensors": shard("all", 1 << 18),
            SHARDS[0]: shard("a", 1 << 20),
            SHARDS[1]: shard("b", 1 << 19),
            "model.safetensors.index.json": json.dumps({"weight_map": {"a": SHARDS[0], "b": SHARDS[1]}}).encode(),
        }
        for name, data in files.items():
            (folder / name).write_bytes(data)
        self.wanted_files = {name: files[name] for name in files if not name.startswith(("README", "pyt", "cons"))}
        self.set_faults()
        argv = (sys.executable, "-m", "tests.support.machines.fake_hub", str(self.hub), "8080")
        build_vm.vm.start(*argv, log="hub.log", cwd=ROOT)
        # The VM's Python finds the hub's client as after `pip install --user huggingface_hub`. It is mounted, because
        # the VM's user may not access the folders above this project.
        build_vm.vm.run("mkdir", "/mnt/packages")
        build_vm.vm.run("mount", "--bind", sysconfig.get_paths()["purelib"], "/mnt/packages")
        site = build_vm.vm.run("python3", "-m", "site", "--user-site", user=USER, check=False).stdout.strip()
        Path(site).mkdir(parents=True)
        Path(site, "client.pth").write_text("/mnt/packages\n")
        build_vm.chown_to_user(build_vm.network.home)
        listening = ("bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/8080")
        wait_for(lambda: build_vm.vm.run(*listening, check=False).returncode == 0, "the hub")

    def reset(self) -> None:
        self.set_faults()
        self.expected_files = dict(self.wanted_files)
        for name, data in self.wanted_files.items():
            (self.hub / "files" / name).write_bytes(data)
        (self.hub / "requests.jsonl").unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.settings = {"HUB_ENDPOINT": "http://127.0.0.1:8080", "IMAGE_MODELS": json.dumps([MODEL])}

    @property
    def folder(self) -> Path:
        """The model's folder on the VM."""
        return Path(self.build_vm.tmpdir, "qlora-fleet", "models", MODEL.replace("/", "--"))

    def set_token(self, token: str) -> None:
        file = self.build_vm.folder / "hub-token"
        file.write_text(token + "\n")
        file.chmod(0o600)
        self.settings["HUB_TOKEN_FILE"] = str(file)

    def set_faults(self, **faults: Any) -> None:
        (self.hub / "faults").write_text(json.dumps(faults))

    def requests(self) -> list[dict[str, Any]]:
        path = self.hub / "requests.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def sent_bytes(self, name: str) -> int:
        return sum(line["sent"] for line in self.requests() if line["path"].endswith(f"/{name}"))

    def start(self, *flags: str) -> subprocess.Popen[str]:
        """Start `inv model.fetch` on the laptop without waiting for it."""
        return self.build_vm.start_inv("model.fetch", *flags, **self.settings)

    def fetch(self, *flags: str, code: int = 0) -> str:
        """Run `inv model.fetch` and assert its exit code. Returns standard error if it fails, else standard output."""
        done = self.build_vm.inv("model.fetch", *flags, code=code, **self.settings)
        return done.stderr if code else done.stdout

    def is_complete(self) -> bool:
        """Check with the manifest and `sha256sum -c`. Returns True if the folder has exactly the model's files."""
        names = {path.name: path.read_bytes() for path in self.folder.iterdir() if path.is_file()}
        manifest = json.loads(names.pop("manifest.json"))
        assert manifest["revision"] == COMMIT
        for entry in manifest["files"]:
            data = names[entry["path"]]
            assert (len(data), hashlib.sha256(data).hexdigest()) == (entry["size"], entry["sha256"])
        subprocess.run(["sha256sum", "--quiet", "--check", "SHA256SUMS"], cwd=self.folder, check=True)
        assert {entry["path"] for entry in manifest["files"]} == set(names)
        names.pop("SHA256SUMS")
        return names == self.expected_files and not [path for path in self.folder.iterdir() if path.is_dir()]


@pytest.fixture(scope="module")
def testbed_of_module(session_build_vm: BuildVm) -> HubTestbed:
    pytest.importorskip("huggingface_hub")
    session_build_vm.reset()
    return HubTestbed(session_build_vm)


@pytest.fixture
def testbed(testbed_of_module: HubTestbed) -> HubTestbed:
    """The shared testbed, with an intact hub and without the model on the VM."""
    testbed_of_module.reset()
    return testbed_of_module


def test_a_model_is_fetched_and_verified_and_only_damaged_files_are_fetched_again(testbed: HubTestbed) -> None:
    output = testbed.fetch()
    assert testbed.is_complete()
    assert f"{MODEL} at {COMMIT}: 6 files" in output
    assert testbed.sent_bytes("pytorch_model.bin") == testbed.sent_bytes("consolidated.safetensors") == 0

    before = len(testbed.requests())
    output = testbed.fetch("--revision", "main")  # resolved by the first fetch, and recorded
    assert "nothing was downloaded" in output
    assert len(testbed.requests()) == before

    path = testbed.folder / SHARDS[1]
    data = bytearray(path.read_bytes())
    data[100_000] ^= 1
    path.write_bytes(data)
    (testbed.folder / "tokenizer.json").unlink()
    assert f"{SHARDS[1]}, tokenizer.json: " in testbed.fetch()
    assert testbed.is_complete()
    assert testbed.sent_bytes(SHARDS[0]) == len(testbed.expected_files[SHARDS[0]])  # intact, so fetched only once


def test_an_interrupted_download_is_resumed_within_the_file(testbed: HubTestbed) -> None:
    large = shard("a", 1 << 22)
    (testbed.hub / "files" / SHARDS[0]).write_bytes(large)
    testbed.expected_files[SHARDS[0]] = large
    testbed.set_faults(cut=12_000_000, cuts=2)  # the hub's client writes chunks of 10 MiB
    testbed.fetch()
    assert testbed.is_complete()
    assert any(line["range"] for line in testbed.requests())
    total = sum(len(testbed.expected_files[name]) for name in SHARDS)
    assert sum(map(testbed.sent_bytes, SHARDS)) < total + 2 * 2_500_000


def test_a_shard_with_a_wrong_digest_is_refused_and_the_model_stays_incomplete(testbed: HubTestbed) -> None:
    testbed.set_faults(flip=SHARDS[1])
    assert f"{SHARDS[1]}: " in testbed.fetch(code=4)
    assert not (testbed.folder / "manifest.json").exists()
    assert not (testbed.folder / SHARDS[1]).exists()
    testbed.set_faults()
    testbed.fetch()
    assert testbed.is_complete()
    assert testbed.sent_bytes(SHARDS[0]) == len(testbed.expected_files[SHARDS[0]])


def test_a_gated_model_needs_a_token_which_appears_nowhere(testbed: HubTestbed) -> None:
    testbed.set_faults(gated=True, token=TOKEN)
    assert f"{MODEL} is gated: it needs a token; " in testbed.fetch(code=2)
    testbed.set_token("hf_another")
    assert f"{MODEL} is gated: this token " in testbed.fetch(code=2)

    testbed.set_token(TOKEN)
    testbed.set_faults(gated=True, token=TOKEN, slow=0.02)
    process = testbed.start()
    leaks = set[str]()
    while process.poll() is None:
        for entry in Path("/proc").glob("[0-9]*"):
            for name in ("cmdline", "environ"):
                try:
                    if SECRET_MARK.encode() in (entry / name).read_bytes():
                        leaks.add(f"{entry}/{name}")
                except OSError:
                    continue
        time.sleep(0.01)
    output = "".join(testbed.build_vm.wait_for_exit(process))
    assert SECRET_MARK not in output
    assert leaks == set()
    assert testbed.is_complete()
    assert any(line["as"] == "Bearer" for line in testbed.requests())
    for path in (*testbed.build_vm.network.home.rglob("*"), *testbed.folder.rglob("*")):
        assert path.is_fifo() is False
        if path.is_file():
            assert SECRET_MARK.encode() not in path.read_bytes(), path


def test_a_disk_that_is_too_small_or_fills_up_is_reported(testbed: HubTestbed) -> None:
    testbed.build_vm.vm.mount_small_disk("/mnt/small", megabytes=64, owner=USER)
    output = testbed.fetch("--tmpdir", "/mnt/small", code=3)
    assert "/mnt/small/" in output
    assert "GB free" in output
    assert "inv model.fetch --tmpdir /mnt/small" in output

    testbed.build_vm.vm.mount_small_disk("/mnt/next", megabytes=96, owner=USER)
    testbed.set_faults(slow=0.1)
    process = testbed.start("--tmpdir", "/mnt/next")
    wait_for(
        lambda: testbed.requests() and any(line["path"].endswith("tokenizer.json") for line in testbed.requests()),
        "a start",
    )
    testbed.build_vm.vm.run("dd", "if=/dev/zero", "of=/mnt/next/filler", "bs=64k", user=USER, check=False)
    assert "no space left" in testbed.build_vm.wait_for_exit(process, code=3)[1]
    testbed.build_vm.vm.run("rm", "/mnt/next/filler")
    testbed.set_faults()
    testbed.fetch("--tmpdir", "/mnt/next")
