"""The hub's own client, which has the operator's token: which servers it sends the token to."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.machines.registry_proxy import Endless, Redirect, RegistryProxy, Stall

TOKEN = "hf_operator_token"


@pytest.fixture
def proxy() -> Iterator[RegistryProxy]:
    with RegistryProxy() as running:
        yield running


other_server = proxy  # a second instance


def test_the_token_for_a_hub_on_this_machine_bypasses_the_proxy(
    proxy: RegistryProxy, other_server: RegistryProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("http_proxy", f"http://{other_server.host}")
    run_requests(proxy, tmp_path, {"verb": "list", "revision": "main"})
    assert [path.partition("?")[0] for _, path, _ in proxy.requests] == ["/api/models/org/name/revision/main"]
    assert other_server.requests == []


def run_requests(
    proxy: RegistryProxy, tmp_path: Path, *requests: dict[str, str], timeout_sec: float = 60.0
) -> list[dict[str, str]]:
    """Run the requests in one process. Returns the replies in order."""
    common = {"model": "org/name", "endpoint": f"http://{proxy.host}", "token": TOKEN, "folder": str(tmp_path / "to"),
              "home": str(tmp_path / "home")}  # fmt: skip
    script = (
        "from remote.agent.build_vm import hf_hub; hf_hub.LIST_MEMORY_BYTES = 400 << 20; "
        f"hf_hub.LIST_TIMEOUT_SEC = {timeout_sec}; hf_hub.main()"
    )
    done = subprocess.run(
        (sys.executable, "-c", script), input="".join(json.dumps(common | request) + "\n" for request in requests),
        text=True, capture_output=True, check=True, timeout=120,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_an_endless_list_of_files_is_refused(proxy: RegistryProxy, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    proxy.arm(Endless(chunk=bytes(8 << 20)))
    (reply,) = run_requests(proxy, tmp_path, {"verb": "list", "revision": "main"})
    assert reply["kind"] == "refused"
    assert "400 MiB" in reply["message"]


def test_a_missing_list_of_files_is_transient(proxy: RegistryProxy, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    proxy.arm(Stall())
    (reply,) = run_requests(proxy, tmp_path, {"verb": "list", "revision": "main"}, timeout_sec=0.3)
    assert reply["kind"] == "transient"


def test_the_hubs_token_is_sent_to_no_other_server(
    proxy: RegistryProxy, other_server: RegistryProxy, tmp_path: Path
) -> None:
    pytest.importorskip("huggingface_hub")
    proxy.arm(Redirect(to=f"http://{other_server.host}".replace("127.0.0.1", "localhost")))
    replies = run_requests(
        proxy, tmp_path, {"verb": "list", "revision": "main"}, {"verb": "fetch", "revision": "a" * 40, "path": "a.json"}
    )
    assert [reply["ok"] for reply in replies] == [False, False]
    authorized = [path for _, path, authorization in proxy.requests if TOKEN in authorization]
    assert {path.startswith("/api/") for path in authorized} == {True, False}, "by both requests"
    assert [authorization for _, _, authorization in other_server.requests if TOKEN in authorization] == []
