"""Tests of `inv serve`: a server in the cluster with a training's adapter, requests to it, and its end.

Real `inv` and kubectl, the tests' own cluster, the pod's own commands; `vllm` is a stand-in that has the protocol,
requires the key, and answers as recorded during training. Not covered: vLLM itself, a GPU, a network policy.
"""

import dataclasses
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.data.model_folder import check_model
from bench.records.adapter import BaseRecord
from bench.records.run import RunRecord
from tests.support.forked import ForkServer
from tests.support.kubernetes import Cluster
from tests.support.paths import ROOT
from tests.support.reports.training_run import RECORD, write_run
from tests.support.small_inputs import write_model
from tests.system.cluster.conftest import DIGEST, PASSWORD, Operator, make_operator

pytestmark = pytest.mark.slow
RUN, WEIGHTS = "20261122-000000-train", b"weights"
VLLM = """#!{python}
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.support.machines.fake_openai import FakeOpenAI
assert sys.argv[1:3] == ["serve", "/scratch/serve/base"], sys.argv
assert Path("/scratch/serve/base/config.json").is_file()
if "--lora-modules" in sys.argv:
    assert Path("/scratch/serve/adapter/adapter_model.safetensors").read_bytes() == {weights!r}
address = (os.environ["POD_IP"], 8000)
with FakeOpenAI({{"Why?": "Because."}}, key=os.environ["VLLM_API_KEY"], models=("base", "tuned"), address=address):
    print("serving", *sys.argv[2:], flush=True)
    signal.sigwait({{signal.SIGTERM}})
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the content of the two images: the bench, a model, a program `vllm`."""
    folder = tmp_path_factory.mktemp("image")
    folder.chmod(0o755)  # the pods run as another user
    write_model(folder / "models" / "org--base")
    (folder / "bin").mkdir()
    (folder / "bin" / "vllm").write_text(VLLM.format(python=sys.executable, root=str(ROOT), weights=WEIGHTS))
    # The check of the image's software reads this file; everything else is the real Python.
    software = folder / "software.json"
    software.write_text(json.dumps({"vllm": "0.32.0", "vllm-bnb-plugin": "0.0.3", "bitsandbytes": "0.50.2"}))
    python = f'#!/bin/sh\n[ "$1$2" = -B-c ] && exec cat {software}\nexec {sys.executable} "$@"\n'
    (folder / "bin" / "python3").write_text(python)
    for program in (folder / "bin").iterdir():
        program.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def serving_cluster(image: Path) -> Iterator[Cluster]:
    path = f"{image / 'bin'}:{Path(sys.executable).parent}:/usr/bin:/bin"
    with Cluster(nodes=1, image_paths=(image,), image_environment={"PATH": path, "PYTHONPATH": str(ROOT)}) as cluster:
        yield cluster


@pytest.fixture
def trained(serving_cluster: Cluster, image: Path, tmp_path: Path, inv_server: ForkServer) -> Operator:
    """Provide an operator with a collected training."""
    operator = make_operator(serving_cluster, tmp_path, inv_server)
    model = image / "models" / "org--base"
    operator.settings |= {
        "model": {"path": str(model)},
        "serve": {"image": f"docker.io/vllm/vllm-openai@{DIGEST}", "arguments": ["--max-model-len", "8192"]},
    }
    operator.settings["fleet"]["kind"] = "local"  # as it was trained
    folder = write_run(operator.results / RUN)
    record = dataclasses.replace(
        RECORD,
        run_id=RUN,
        adapter_sha256=hashlib.sha256(WEIGHTS).hexdigest(),
    )
    record.write(folder)
    run = RunRecord.read(folder / "run.json")
    inputs = {"inputs": {"model": {"sha256": check_model(model).sha256}}}
    dataclasses.replace(run, run_id=RUN, provenance=inputs).write(folder)
    adapter = folder / "adapter"
    adapter.mkdir()
    (adapter / "adapter_model.safetensors").write_bytes(WEIGHTS)
    (adapter / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4, "lora_alpha": 8}')
    BaseRecord(tensors={}, adapters=["model.layers.0.self_attn.q_proj"]).write(adapter)
    (adapter / "tokenizer.json").write_bytes((model / "tokenizer.json").read_bytes())
    return operator


def test_an_adapter_is_served_with_a_hidden_key_and_stopped(trained: Operator) -> None:
    output = trained.inv("serve", "--dry-run")
    assert "create     job/serve" in output
    assert "not checked: " in output
    assert trained.objects("jobs.batch") == []
    output = trained.inv("serve", stdin=f"{PASSWORD}\n")
    assert "sent the adapter to serve-0-" in output
    assert f"serving run {RUN} as tuned" in output
    (pod,) = trained.objects("pods")
    (secret,) = [candidate for candidate in trained.objects("secrets") if candidate["metadata"]["name"] == "serve-key"]
    log = trained.kubectl("logs", pod["metadata"]["name"])
    assert "--lora-modules tuned=/scratch/serve/adapter --quantization bitsandbytes" in log
    assert "--max-model-len 8192" in log

    assert "base, tuned, not other" in trained.inv("serve.check", "cluster", "--model=other", code=2)
    key = trained.kubectl("get", "secret", "serve-key", "--output=go-template={{.data.key | base64decode}}")
    assert len(key) >= 40
    for text in (output, log, *(path.read_text(errors="replace") for path in trained.project.rglob("*.json"))):
        assert key not in text
        assert secret["data"]["key"] not in text

    assert "nothing to do: 1 of 1 pods are up" in trained.inv("serve")
    trained.inv("serve.stop")
    assert "no server is deployed" in trained.inv("serve.stop")
    assert trained.objects("jobs.batch") == []
    assert [secret["metadata"]["name"] for secret in trained.objects("secrets")] == ["ocir-secret"]
    assert "no pod has index 0" in trained.inv("serve.check", "cluster", code=3)


def test_an_error_of_serve_is_one_line(trained: Operator, image: Path) -> None:
    trained.settings["serve"] |= {"image": "docker.io/vllm/vllm-openai:latest"}
    assert "a tag can move" in trained.inv("serve", code=2)
    del trained.settings["serve"]["image"]
    assert "serve.image: " in trained.inv("serve", code=2)
    trained.settings["serve"] |= {"image": f"docker.io/vllm/vllm-openai@{DIGEST}"}
    trained.settings["model"]["path"] = "models/here"
    assert "model.path: " in trained.inv("serve", code=2)
    trained.settings["model"]["path"] = str(image / "models" / "org--base")
    record = RunRecord.read(trained.results / RUN / "run.json")
    inputs = {"inputs": {"model": {"sha256": "0" * 64}}}
    dataclasses.replace(record, provenance=inputs).write(trained.results / RUN)
    output = trained.inv("serve", stdin=f"{PASSWORD}\n", code=1)
    assert "Container adapter for pod" in output
    assert "failed with exit code 4" in output
    assert output.splitlines()[-1].count("`inv serve") == 1, "not once more as the command that continues"
    (pod,) = trained.objects("pods")
    log = trained.kubectl("logs", pod["metadata"]["name"], "--container=adapter")
    assert "not the model that the adapter was trained on" in log
    trained.inv("teardown", "--yes")


def test_a_vllm_that_cannot_load_nf4_is_refused_before_the_workers_end(trained: Operator, image: Path) -> None:
    software = image / "software.json"
    before = software.read_text()
    software.write_text(json.dumps({"vllm": "0.32.0", "vllm-bnb-plugin": None, "bitsandbytes": None}))
    try:
        trained.settings["fleet"]["size"] = 1
        trained.inv("deploy", stdin=f"{PASSWORD}\n")
        (worker,) = trained.objects("pods")
        output = trained.inv("serve", code=2)
        assert f"adapter.merge --run={RUN} --base=nf4 serve --merged --run={RUN}" in output
        (pod,) = trained.objects("pods")
        assert pod["metadata"]["uid"] == worker["metadata"]["uid"]
        assert [job["metadata"]["name"] for job in trained.objects("jobs.batch")] == ["bench"]
    finally:
        software.write_text(before)
        trained.inv("teardown", "--yes", "--discard-results")


def test_a_merged_model_is_served_by_a_vllm_without_the_plugin(trained: Operator, image: Path) -> None:
    folder = trained.results / RUN
    merged = write_model(trained.project / "merged")
    facts = {
        "base": "nf4",
        "end_ids": [],
        "shards": 1,
        "bytes": 1,
        "adapter_sha256": hashlib.sha256(WEIGHTS).hexdigest(),
        "model_sha256": check_model(image / "models" / "org--base").sha256,
    }
    (merged / "merge.json").write_text(json.dumps(facts))
    names = sorted(path.name for path in merged.iterdir() if path.is_file())
    lines = [f"{hashlib.sha256((merged / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    (merged / "SHA256SUMS").write_text("".join(lines))
    assert "adapter.merge" in trained.inv("serve", "--merged", code=2)
    (folder / "merged.json").write_text(json.dumps({"path": str(merged), **facts}))
    output = trained.inv("serve", "--merged", stdin=f"{PASSWORD}\n")
    assert "sent the merged model to serve-0-" in output
    (pod,) = trained.objects("pods")
    log = trained.kubectl("logs", pod["metadata"]["name"])
    assert "--served-model-name tuned" in log
    assert not any(option in log for option in ("--quantization", "--lora-modules"))
    assert f"run {RUN}: 1 of 1 " in trained.inv("serve.check", "cluster", "--model=tuned")
    trained.inv("serve.stop")
    trained.inv("teardown", "--yes", "--discard-results")
