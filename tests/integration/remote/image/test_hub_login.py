"""The hub's own client, which has the operator's token: where it takes it when the hub redirects."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote.image.vm_agent import hf_hub
from tests.support.machines.registry_proxy import Answer, Endless, Redirect, RegistryProxy, Stall

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


def test_the_hubs_token_for_this_machine_itself_is_shown_to_no_proxy(
    proxy: RegistryProxy, elsewhere: RegistryProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("http_proxy", f"http://{elsewhere.host}")
    proxy.arm(Answer(status=404))
    answers_to(proxy, tmp_path, {"verb": "list", "revision": "main"})
    assert [path.partition("?")[0] for _, path, _ in proxy.asked] == ["/api/models/org/name/revision/main"]
    assert elsewhere.asked == []


def answers_to(proxy: RegistryProxy, tmp_path: Path, *questions: dict[str, str]) -> list[dict[str, str]]:
    """Of one process, in the questions' order."""
    common = {"model": "org/name", "endpoint": f"http://{proxy.host}", "token": TOKEN, "folder": str(tmp_path / "to"),
              "home": str(tmp_path / "home")}  # fmt: skip
    done = subprocess.run(
        (sys.executable, hf_hub.__file__), input="".join(json.dumps(common | question) + "\n" for question in questions),
        text=True, capture_output=True, check=True, timeout=120,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_a_list_of_files_without_end_is_given_up_and_named(proxy: RegistryProxy, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    proxy.arm(Endless(piece=bytes(8 << 20)))
    (answer,) = answers_to(proxy, tmp_path, {"verb": "list", "revision": "main"})
    assert answer["kind"] == "refused"
    assert "answers with more than 768 MiB can hold" in answer["message"]


def test_a_list_of_files_that_never_comes_may_come_later(proxy: RegistryProxy, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    proxy.arm(Stall())
    asked = {
        "verb": "list",
        "model": "org/name",
        "revision": "main",
        "endpoint": f"http://{proxy.host}",
        "token": TOKEN,
    }
    impatient = "from remote.image.vm_agent import hub; hub.LIST_SEC = 0.3; hub.main()"
    done = subprocess.run(
        (sys.executable, "-c", impatient), input=json.dumps({**asked, "home": str(tmp_path)}) + "\n",
        text=True, capture_output=True, check=True, timeout=120,
    )  # fmt: skip
    assert json.loads(done.stdout)["kind"] == "transient"


def test_the_hubs_token_is_taken_to_no_other_server(
    proxy: RegistryProxy, elsewhere: RegistryProxy, tmp_path: Path
) -> None:
    pytest.importorskip("huggingface_hub")
    proxy.arm(Redirect(to=f"http://{elsewhere.host}"))
    answers = answers_to(
        proxy, tmp_path, {"verb": "list", "revision": "main"}, {"verb": "fetch", "revision": "a" * 40, "path": "a.json"}
    )
    assert [answer["ok"] for answer in answers] == [False, False]
    asked = [path for _, path, authorization in proxy.asked if TOKEN in authorization]
    assert {path.startswith("/api/") for path in asked} == {True, False}, "by both"
    assert [authorization for _, _, authorization in elsewhere.asked if TOKEN in authorization] == []
