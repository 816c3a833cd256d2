"""`inv model.fetch` with this machine as the VM: the hub's real client, a fake hub with faults, real disks."""

import hashlib
import json
import secrets
import struct
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.faults import read_process_table
from tests.support.hosts.local_fleet import fill_disk, mounted_tmpfs
from tests.support.machines.fake_hub import COMMIT, MODEL, FakeHub
from tests.support.machines.ssh_tools import wait_for
from tests.support.paths import ROOT

pytest.importorskip("huggingface_hub")
Inv = Callable[..., "subprocess.CompletedProcess[str]"]
NAME = MODEL.replace("/", "--")
SECRET_MARK = secrets.token_hex(8)  # unique to this test run
TOKEN = f"hf_'{SECRET_MARK}' $HOME \"token\""
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def shard(name: str, floats: int) -> bytes:
    header = json.dumps({name: {"dtype": "F32", "shape": [floats], "data_offsets": [0, 4 * floats]}}).encode()
    return struct.pack("<Q", len(header)) + header + hashlib.sha256(name.encode()).digest() * (floats // 8)


WANTED = {
    "config.json": b'{"model_type": "mistral"}',
    "tokenizer.json": b"{}",
    SHARDS[0]: shard("a", 1 << 18),
    SHARDS[1]: shard("b", 1 << 17),
    "model.safetensors.index.json": json.dumps({"weight_map": {"a": SHARDS[0], "b": SHARDS[1]}}).encode(),
}
OTHERS = {"README.md": b"not fetched", "pytorch_model.bin": b"a pickle", "consolidated.safetensors": shard("all", 8)}


class Hub(FakeHub):
    """The hub, and `inv model.fetch` from it."""

    def __init__(self, project: Path, inv: Inv) -> None:
        super().__init__({**WANTED, **OTHERS})
        self.inv, self.token_file, self.share = inv, project.parent / "hub-token", project.parent / "share"
        self.share.mkdir()
        self.model = self.share / "qlora-fleet" / "models" / NAME

    def set_token(self, token: str) -> None:
        self.token_file.touch(mode=0o600)
        self.token_file.write_text(token + "\n")

    def sent_bytes(self, name: str) -> int:
        return sum(request["sent"] for request in self.requests if request["path"].endswith(f"/{name}"))

    def fetch(self, *flags: str, code: int = 0, share: Path | None = None) -> str:
        """Run `inv model.fetch` and assert its exit code. Returns standard error if it fails, else standard output."""
        settings = {"INVOKE_HUB_TOKEN_FILE": str(self.token_file)} if self.token_file.exists() else {}
        tmpdir = () if "--here" in flags else ("--tmpdir", str(share or self.share))
        done = self.inv("model.fetch", "--model", MODEL, *tmpdir, *flags, env=settings)
        assert done.returncode == code, (done.stdout, done.stderr)
        return done.stderr if code else done.stdout

    def is_complete(self, folder: Path) -> bool:
        """Check with the manifest and `sha256sum -c`. Returns True if the folder has exactly the model's files."""
        content = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        manifest = json.loads(content.pop("manifest.json"))
        assert manifest["revision"] == COMMIT
        for entry in manifest["files"]:
            data = content[entry["path"]]
            assert (len(data), hashlib.sha256(data).hexdigest()) == (entry["size"], entry["sha256"])
        subprocess.run(["sha256sum", "--quiet", "--check", "SHA256SUMS"], cwd=folder, check=True)
        assert {entry["path"] for entry in manifest["files"]} == set(content)
        content.pop("SHA256SUMS")
        return content == {name: self.files[name] for name in WANTED} and not [
            path for path in folder.iterdir() if path.is_dir()
        ]


@pytest.fixture
def hub(project: Path, inv: Inv, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    (project / "image").symlink_to(ROOT / "image")  # the lock of the hub's client
    with Hub(project, inv) as hub:
        monkeypatch.setenv("INVOKE_HUB_ENDPOINT", f"http://{hub.host}")
        yield hub


def test_a_model_is_fetched_and_verified_and_only_damaged_files_are_fetched_again(hub: Hub) -> None:
    hub.faults = {"flip": SHARDS[1]}
    assert f"{SHARDS[1]}: " in hub.fetch(code=4)
    assert not (hub.model / "manifest.json").exists()
    assert not (hub.model / SHARDS[1]).exists()
    hub.faults = {}
    assert f"{MODEL} at {COMMIT}: 6 files" in hub.fetch()
    assert hub.is_complete(hub.model)
    assert [hub.sent_bytes(name) for name in OTHERS] == [0, 0, 0]

    before = len(hub.requests)
    assert "nothing was downloaded" in hub.fetch("--revision", "main")  # resolved by the first fetch, and recorded
    assert len(hub.requests) == before

    path = hub.model / SHARDS[1]
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    (hub.model / "tokenizer.json").unlink()
    assert f"{SHARDS[1]}, tokenizer.json: " in hub.fetch()
    assert hub.is_complete(hub.model)
    assert hub.sent_bytes(SHARDS[0]) == len(WANTED[SHARDS[0]])  # intact, so fetched only once


def test_an_interrupted_download_is_resumed_within_the_file_and_kept_here(hub: Hub, project: Path) -> None:
    large = shard("a", 1 << 22)
    hub.files[SHARDS[0]] = large
    hub.faults = {"cut": 12_000_000, "cuts": 2}  # the hub's client writes chunks of 10 MiB
    output = hub.fetch("--here")
    assert output.splitlines()[-1] == f"to use it: `inv train --model=models/{NAME}`"
    assert hub.is_complete(project / "models" / NAME)
    assert any(line["range"] for line in hub.requests)
    assert sum(map(hub.sent_bytes, SHARDS)) < len(large) + len(WANTED[SHARDS[1]]) + 2 * 2_500_000


def test_a_gated_model_needs_a_token_which_appears_nowhere(hub: Hub, project: Path) -> None:
    hub.faults = {"gated": True, "token": TOKEN}
    assert f"{MODEL} is gated: it needs a token; " in hub.fetch(code=2)
    hub.set_token("hf_another")
    assert f"{MODEL} is gated: this token " in hub.fetch(code=2)

    hub.set_token(TOKEN)
    hub.faults = {"gated": True, "token": TOKEN, "slow": 0.02}
    leaks = list[bytes]()
    with ThreadPoolExecutor() as threads:
        fetching = threads.submit(hub.fetch)
        while not fetching.done():
            leaks += [content for content in read_process_table() if SECRET_MARK.encode() in content]
    assert SECRET_MARK not in fetching.result()
    assert leaks == []
    assert hub.is_complete(hub.model)
    assert any(line["as"] == "Bearer" for line in hub.requests)
    for path in (*project.rglob("*"), *hub.share.rglob("*")):
        assert path.is_fifo() is False
        if path.is_file():
            assert SECRET_MARK.encode() not in path.read_bytes(), path


def test_a_disk_that_is_too_small_or_fills_up_is_reported(hub: Hub, tmp_path: Path) -> None:
    with mounted_tmpfs(tmp_path / "small", "64m") as small:
        output = hub.fetch(code=3, share=small)
        assert f"{small}/" in output
        assert "GB free" in output
        assert f"inv model.fetch --model {MODEL} --tmpdir {small}" in output
    with mounted_tmpfs(tmp_path / "next", "96m") as disk, ThreadPoolExecutor() as threads:
        hub.faults = {"slow": 0.1}
        fetching = threads.submit(hub.fetch, code=3, share=disk)
        wait_for(lambda: any(line["path"].endswith("tokenizer.json") for line in hub.requests), "a start")
        fill_disk(disk)
        assert "no space left" in fetching.result()
        (disk / "filler").unlink()
        hub.faults = {}
        hub.fetch(share=disk)
