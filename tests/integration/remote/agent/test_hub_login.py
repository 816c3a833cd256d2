"""The hub's own client, which has the operator's token: which servers it sends the token to."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.machines.registry_proxy import Endless, Redirect, RegistryProxy, Stall, Switch
from tests.support.paths import ROOT

TOKEN = "hf_operator_token"


@pytest.fixture
def proxy() -> Iterator[RegistryProxy]:
    with RegistryProxy() as running:
        yield running


other_server = proxy  # a second instance


SCRIPT = """
import json, sys
from pathlib import Path
from remote.agent.build_vm import hf_hub
from remote.agent.build_vm.job import JobLog
from remote.agent.shared.errors import VmAgentError

endpoint, token, hf_hub.LIST_TIMEOUT_SEC = sys.argv[1], sys.argv[2], float(sys.argv[3])
hf_hub.LIST_MEMORY_BYTES, hf_hub._FIRST_WAIT_SEC = 400 << 20, 0.0
job = {"model": "org/name", "endpoint": endpoint, "folder": "to", "revision": None, "index_url": None}
source = hf_hub.HubSource(JobLog(), job, token)
for verb in sys.argv[4:]:
    try:
        if verb == "list":
            source.list_files()
        else:
            source._commit = "a" * 40
            source.fetch({"path": "a.json", "size": 1}, Path("to"))
    except VmAgentError as error:
        print("failure", json.dumps(error.to_json()))
"""


def run_requests(proxy: RegistryProxy, tmp_path: Path, *verbs: str, timeout_sec: float = 60.0) -> list[dict[str, str]]:
    """Run the requests in one process. Returns their failures."""
    pytest.importorskip("huggingface_hub")
    argv = (sys.executable, "-c", SCRIPT, f"http://{proxy.host}", TOKEN, str(timeout_sec), *verbs)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, cwd=tmp_path, env=environment, text=True, capture_output=True, check=True, timeout=120)
    lines = done.stdout.splitlines()
    return [json.loads(line.removeprefix("failure ")) for line in lines if line.startswith("failure ")]


def test_the_token_for_a_hub_on_this_machine_bypasses_the_proxy(
    proxy: RegistryProxy, other_server: RegistryProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", f"http://{other_server.host}")
    run_requests(proxy, tmp_path, "list")
    assert {path.partition("?")[0] for _, path, _ in proxy.requests} == {"/api/models/org/name/revision/main"}
    assert other_server.requests == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "timeout_sec", "kind", "token"),
    [(Endless(chunk=bytes(8 << 20)), 60.0, "refused", "400 MiB"), (Stall(), 0.3, "transient", "hub")],
)
def test_a_list_of_files_without_an_end_is_limited(
    proxy: RegistryProxy, tmp_path: Path, fault: Switch, timeout_sec: float, kind: str, token: str
) -> None:
    proxy.arm(fault)
    (failure,) = run_requests(proxy, tmp_path, "list", timeout_sec=timeout_sec)
    assert failure["kind"] == kind
    assert token in failure["message"]


def test_the_hubs_token_is_sent_to_no_other_server(
    proxy: RegistryProxy, other_server: RegistryProxy, tmp_path: Path
) -> None:
    proxy.arm(Redirect(to=f"http://{other_server.host}".replace("127.0.0.1", "localhost")))
    assert len(run_requests(proxy, tmp_path, "list", "fetch")) == 2
    authorized = [path for _, path, authorization in proxy.requests if TOKEN in authorization]
    assert {path.startswith("/api/") for path in authorized} == {True, False}, "by both requests"
    assert [authorization for _, _, authorization in other_server.requests if TOKEN in authorization] == []
