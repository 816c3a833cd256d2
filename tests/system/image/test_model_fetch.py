"""`inv model.fetch` from laptop to VM: the real client of the hub, a small hub with faults, real disks and cables."""

import hashlib
import json
import os
import secrets
import shutil
import struct
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.forked import AS_INV, INV, ForkServer
from tests.support.machines.fake_hub import COMMIT, MODEL
from tests.support.machines.network import Network
from tests.support.machines.ssh_tools import wait_for
from tests.support.paths import ROOT

MARK = secrets.token_hex(8)  # no other process of this machine, of another run of these tests or of a person, says it
TOKEN = f"hf_'{MARK}' $HOME \"token\""
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def shard(name: str, floats: int) -> bytes:
    header = json.dumps({name: {"dtype": "F32", "shape": [floats], "data_offsets": [0, 4 * floats]}}).encode()
    return struct.pack("<Q", len(header)) + header + hashlib.sha256(name.encode()).digest() * (floats // 8)


class Town:
    """The network with a hub on the VM, and on the laptop a project and what `inv` is forked from."""

    def __init__(self, network: Network, server: ForkServer) -> None:
        self.network, self.hub, self.server = network, network.folder / "hub", server
        files = self.hub / "files"
        files.mkdir(parents=True)
        content = {
            "config.json": b'{"model_type": "mistral"}',
            "tokenizer.json": b"{}",
            "README.md": b"not for us",
            "pytorch_model.bin": b"a pickle" * 20_000,
            "consolidated.safetensors": shard("all", 1 << 18),
            SHARDS[0]: shard("a", 1 << 20),
            SHARDS[1]: shard("b", 1 << 19),
            "model.safetensors.index.json": json.dumps({"weight_map": {"a": SHARDS[0], "b": SHARDS[1]}}).encode(),
        }
        for name, data in content.items():
            (files / name).write_bytes(data)
        self.wanted = {name: content[name] for name in content if not name.startswith(("README", "pyt", "cons"))}
        self.content = dict(self.wanted)
        self.faults()
        argv = (sys.executable, "-m", "tests.support.machines.fake_hub", str(self.hub), "8080")
        network.vm.start(*argv, log="hub.log", cwd=ROOT)
        # The VM's own Python finds the hub's client as it would after `pip install --user huggingface_hub`; by a mount,
        # since the VM's user may not pass the folders above this project.
        network.vm.run("mkdir", "/mnt/packages")
        network.vm.run("mount", "--bind", sysconfig.get_paths()["purelib"], "/mnt/packages")
        site = network.vm.run("python3", "-m", "site", "--user-site", user="ubuntu", check=False).stdout.strip()
        Path(site).mkdir(parents=True)
        Path(site, "client.pth").write_text("/mnt/packages\n")
        network.vm.run("chown", "-R", "ubuntu", str(network.home))
        listening = ("bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/8080")
        wait_for(lambda: network.vm.run(*listening, check=False).returncode == 0, "the hub")
        self.project = network.folder / "project"
        self.project.mkdir()
        for name in ("bench", "remote", "reports", "tasks", "image"):
            shutil.copytree(ROOT / name, self.project / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "tasks.py", self.project)
        settings = yaml.safe_load((ROOT / "invoke.yaml").read_text())
        settings["build"]["host"] = "vm"
        settings["image"]["models"] = [MODEL]
        settings["hub"]["endpoint"] = "http://127.0.0.1:8080"
        self.settings = settings
        self.write_settings()

    def begin_anew(self) -> None:
        self.faults()
        self.content = dict(self.wanted)
        for name, data in self.wanted.items():
            (self.hub / "files" / name).write_bytes(data)
        (self.hub / "requests.jsonl").unlink(missing_ok=True)
        shutil.rmtree(self.network.home / ".qlora-fleet", ignore_errors=True)
        self.settings["hub"]["token_file"] = None
        self.write_settings()

    @property
    def folder(self) -> Path:
        """The model on the VM."""
        return self.network.home / ".qlora-fleet" / "qlora-fleet" / "models" / MODEL.replace("/", "--")

    def write_settings(self) -> None:
        (self.project / "invoke.yaml").write_text(yaml.safe_dump(self.settings))

    def with_token(self, token: str) -> None:
        file = self.project / "token"
        file.write_text(token + "\n")
        file.chmod(0o600)
        self.settings["hub"]["token_file"] = "token"
        self.write_settings()

    def faults(self, **faults: Any) -> None:
        (self.hub / "faults").write_text(json.dumps(faults))

    def requests(self) -> list[dict[str, Any]]:
        path = self.hub / "requests.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def sent(self, name: str) -> int:
        return sum(line["sent"] for line in self.requests() if line["path"].endswith(f"/{name}"))

    @property
    def environment(self) -> dict[str, str]:
        # The laptop's ssh finds its configuration by the home in passwd; Invoke must find no ~/.invoke.yaml.
        kept = {name: value for name, value in os.environ.items() if not name.startswith("INVOKE_")}
        return {**kept, "HOME": str(self.project), "PYTHONPATH": str(self.project)}

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Type `inv model.fetch` on the laptop and do not wait."""
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        argv = ("-c", AS_INV, "model.fetch", *words)
        return self.server.start(*argv, cwd=self.project, env=self.environment, **pipes)

    def fetch(self, *words: str, code: int = 0) -> str:
        """Type `inv model.fetch`; asserts its exit code. What it said, an error alone if it failed."""
        done = self.server.inv("model.fetch", *words, cwd=self.project, env=self.environment, timeout_sec=120)
        print(done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        assert done.returncode == code
        return done.stderr if code else done.stdout

    def whole(self) -> bool:
        """Is exactly the model there, and does `sha256sum -c` agree?"""
        names = {path.name: path.read_bytes() for path in self.folder.iterdir() if path.is_file()}
        manifest = json.loads(names.pop("manifest.json"))
        assert manifest["revision"] == COMMIT
        for entry in manifest["files"]:
            data = names[entry["path"]]
            assert (len(data), hashlib.sha256(data).hexdigest()) == (entry["size"], entry["sha256"])
        subprocess.run(["sha256sum", "--quiet", "--check", "SHA256SUMS"], cwd=self.folder, check=True)
        assert {entry["path"] for entry in manifest["files"]} == set(names)
        names.pop("SHA256SUMS")
        return names == self.content and not [path for path in self.folder.iterdir() if path.is_dir()]


@pytest.fixture(scope="module")
def town_of_module(network_of_module: Network) -> Iterator[Town]:
    pytest.importorskip("huggingface_hub")
    laptop = network_of_module.laptop
    with ForkServer(network_of_module.folder, INV, lambda argv, **options: laptop.start(*argv, **options)) as server:
        yield Town(network_of_module, server)


@pytest.fixture
def town(town_of_module: Town) -> Town:
    """Shared by this file: every test finds the hub whole and the VM without the model."""
    town_of_module.begin_anew()
    return town_of_module


def test_a_model_is_fetched_verified_and_not_fetched_again_until_a_byte_flips(town: Town) -> None:
    said = town.fetch()
    assert town.whole()
    assert f"{MODEL} at {COMMIT}: 6 files" in said
    assert town.sent("pytorch_model.bin") == town.sent("consolidated.safetensors") == 0

    before = len(town.requests())
    said = town.fetch("--revision", "main")  # resolved once, and written down
    assert "nothing was downloaded" in said
    assert len(town.requests()) == before

    path = town.folder / SHARDS[1]
    data = bytearray(path.read_bytes())
    data[100_000] ^= 1
    path.write_bytes(data)
    (town.folder / "tokenizer.json").unlink()
    assert f"{SHARDS[1]}, tokenizer.json: not what the manifest says" in town.fetch()
    assert town.whole()
    assert town.sent(SHARDS[0]) == len(town.content[SHARDS[0]])  # that one was right, and came once


def test_a_download_that_is_cut_goes_on_inside_the_file(town: Town) -> None:
    large = shard("a", 1 << 22)
    (town.hub / "files" / SHARDS[0]).write_bytes(large)
    town.content[SHARDS[0]] = large
    town.faults(cut=12_000_000, cuts=2)  # the hub's client keeps what it has in pieces of 10 MiB
    town.fetch()
    assert town.whole()
    assert any(line["range"] for line in town.requests())
    total = sum(len(town.content[name]) for name in SHARDS)
    assert sum(map(town.sent, SHARDS)) < total + 2 * 2_500_000


@pytest.mark.parametrize("fault", ["flip", "truncate"])
def test_a_shard_that_comes_spoilt_every_time_is_refused_and_nothing_counts_as_whole(town: Town, fault: str) -> None:
    town.faults(**{fault: SHARDS[1]})
    assert f"{SHARDS[1]}: came with a wrong digest, twice; nothing of it was kept" in town.fetch(code=4)
    assert not (town.folder / "manifest.json").exists()
    assert not (town.folder / SHARDS[1]).exists()
    town.faults()
    town.fetch()
    assert town.whole()
    assert town.sent(SHARDS[0]) == len(town.content[SHARDS[0]])


def test_a_gated_model_needs_a_token_which_is_found_nowhere(town: Town) -> None:
    town.faults(gated=True, token=TOKEN)
    assert "is gated: it needs a token; accept its terms at" in town.fetch(code=2)
    town.with_token("hf_another")
    assert "this token may not read it" in town.fetch(code=2)

    town.with_token(TOKEN)
    town.faults(gated=True, token=TOKEN, slow=0.02)
    process = town.start()
    seen = set[str]()
    while process.poll() is None:
        for entry in Path("/proc").glob("[0-9]*"):
            for name in ("cmdline", "environ"):
                try:
                    if MARK.encode() in (entry / name).read_bytes():
                        seen.add(f"{entry}/{name}")
                except OSError:
                    continue
        time.sleep(0.01)
    said, _ = process.communicate()
    assert process.returncode == 0, said
    assert MARK not in said
    assert seen == set()
    assert town.whole()
    assert any(line["as"] == "Bearer" for line in town.requests())
    for path in town.network.home.rglob("*"):
        assert path.is_fifo() is False
        if path.is_file():
            assert MARK.encode() not in path.read_bytes(), path


def test_what_the_hub_does_not_have_is_said(town: Town) -> None:
    for words, said in (
        (("--model", "org/none"), "shows no such model"),
        (("--revision", "v99"), "has no revision 'v99'"),
        (("--model", "../etc"), "is no model's name"),
    ):
        assert said in town.fetch(*words, code=2)
    assert not town.folder.exists() or not (town.folder / "manifest.json").exists()


def test_a_vm_that_cannot_have_the_hubs_client_is_told_what_it_lacks(town: Town) -> None:
    """The other way, an installation from a package index, needs an index: no test covers it."""
    (pth,) = town.network.home.rglob("client.pth")
    aside = pth.rename(town.network.folder / "client.pth")
    town.settings["image"]["index_url"] = "file:///no/such/index"
    town.write_settings()
    try:
        said = town.fetch(code=2)
    finally:
        aside.rename(pth)
        town.settings["image"]["index_url"] = None
        town.write_settings()
    assert "huggingface_hub is not on the VM and cannot be installed" in said
    assert "or bring the model from a cache (--cache, --cache-here)" in said


def test_a_disk_too_small_is_said_before_and_one_filled_meanwhile_when_it_happens(town: Town) -> None:
    town.network.vm.small_disk("/mnt/small", megabytes=64, owner="ubuntu")
    said = town.fetch("--tmpdir", "/mnt/small", code=3)
    assert "GB free, the rest of the model needs" in said
    assert "inv model.fetch --tmpdir /mnt/small" in said

    town.network.vm.small_disk("/mnt/next", megabytes=96, owner="ubuntu")
    town.faults(slow=0.1)
    process = town.start("--tmpdir", "/mnt/next")
    wait_for(
        lambda: town.requests() and any(line["path"].endswith("tokenizer.json") for line in town.requests()), "a start"
    )
    town.network.vm.run("dd", "if=/dev/zero", "of=/mnt/next/filler", "bs=64k", user="ubuntu", check=False)
    said = process.communicate(timeout=120)[0]
    assert process.returncode == 3, said
    assert "no space left" in said
    town.network.vm.run("rm", "/mnt/next/filler")
    town.faults()
    town.fetch("--tmpdir", "/mnt/next")


def test_a_laptop_that_is_cut_off_finds_the_same_job_again(town: Town) -> None:
    town.faults(slow=0.15)
    first = town.start()
    wait_for(lambda: any(line["path"].endswith("tokenizer.json") for line in town.requests()), "a start")
    town.network.cable.cut("drop")
    first.kill()  # the lid is closed
    first.communicate()
    town.network.cable.mend()
    assert "is running (" in town.fetch()
    assert town.whole()
    assert len(list((town.network.home / ".qlora-fleet" / "jobs").iterdir())) == 1
    assert sum(map(town.sent, SHARDS)) == sum(len(town.content[name]) for name in SHARDS)


def make_cache(town: Town, at: Path) -> Path:
    """A Hugging Face cache, as the hub's own client lays it out."""
    home = at / "hub" / f"models--{MODEL.replace('/', '--')}"
    (home / "blobs").mkdir(parents=True)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(COMMIT)
    snapshot = home / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    for path in (town.hub / "files").iterdir():
        data = path.read_bytes()
        name = hashlib.sha256(data).hexdigest() if len(data) > 100_000 else _git(data)
        (home / "blobs" / name).write_bytes(data)
        (snapshot / path.name).symlink_to(f"../../blobs/{name}")
    return home


def _git(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


@pytest.mark.parametrize("where", ["cache", "cache-here"])
def test_a_cache_is_as_good_as_the_hub_and_is_verified_as_well(town: Town, where: str) -> None:
    at = town.network.folder / f"a {where}"
    home = make_cache(town, at)
    blob = (home / "snapshots" / COMMIT / SHARDS[0]).resolve()
    data = blob.read_bytes()
    blob.write_bytes(data[:5000] + b"?" + data[5001:])
    said = town.fetch(f"--{where}", str(at), code=4)
    assert SHARDS[0] in said
    assert "; name another source" in said
    blob.write_bytes(data)
    town.fetch(f"--{where}", str(at))
    assert town.whole()
    assert town.requests() == []
