"""The hub's own client, which has the operator's token: where it takes it when the hub redirects."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote.image.onvm import hub
from tests.support.machines.registry_proxy import Answer, Endless, Redirect, RegistryProxy

TOKEN = "hf_of_the_operator"


@pytest.fixture
def proxy() -> Iterator[RegistryProxy]:
    with RegistryProxy(upstream="http://127.0.0.1:9") as running:
        yield running


@pytest.fixture
def elsewhere() -> Iterator[RegistryProxy]:
    with RegistryProxy(upstream="http://127.0.0.1:9") as running:
        running.arm(Answer(status=404))
        yield running


def answer_to(proxy: RegistryProxy, tmp_path: Path, question: dict[str, str]) -> dict[str, str]:
    asked = {"model": "org/name", "endpoint": f"http://{proxy.host}", "token": TOKEN, "folder": str(tmp_path / "to"),
             "home": str(tmp_path / "home"), **question}  # fmt: skip
    done = subprocess.run(
        (sys.executable, hub.__file__),
        input=json.dumps(asked) + "\n", text=True, capture_output=True, check=True, timeout=120,
    )  # fmt: skip
    answer: dict[str, str] = json.loads(done.stdout)
    return answer


@pytest.mark.slow
def test_a_list_of_files_without_end_is_given_up_and_named(proxy: RegistryProxy, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    proxy.arm(Endless(piece=bytes(8 << 20)))
    answer = answer_to(proxy, tmp_path, {"verb": "list", "revision": "main"})
    assert answer["kind"] == "refused"
    assert "answers with more than 768 MiB can hold" in answer["message"]


@pytest.mark.parametrize("question", [
    {"verb": "list", "revision": "main"},
    {"verb": "fetch", "revision": "a" * 40, "path": "config.json"},
])  # fmt: skip
def test_the_hubs_token_is_taken_to_no_other_server(
    proxy: RegistryProxy, elsewhere: RegistryProxy, tmp_path: Path, question: dict[str, str]
) -> None:
    pytest.importorskip("huggingface_hub")
    proxy.arm(Redirect(to=f"http://{elsewhere.host}"))
    answer_to(proxy, tmp_path, question)
    assert any(TOKEN in authorization for _, _, authorization in proxy.asked)
    assert [authorization for _, _, authorization in elsewhere.asked if TOKEN in authorization] == []
