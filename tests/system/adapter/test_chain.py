"""Test of the README's commands from a training to a server, with a real small model:

    THOROUGH=1 REAL_MODEL=models/HuggingFaceTB--SmolLM2-135M-Instruct pytest tests/system/adapter/test_chain.py

takes half an hour on two busy cores. REAL_MODEL is a folder of `inv model.demo --real`; without it the test creates the
model. `inv`, kubectl, training, check and merge are real; the cluster is the tests' own, and `vllm` is plain
transformers behind its protocol (tests/support/machines/plain_vllm.py). Not covered: a GPU; vLLM itself is in
test_real_vllm.py.
"""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.kubernetes import Cluster
from tests.support.paths import ROOT
from tests.support.thorough import only_thorough
from tests.system.adapter.conftest import QUESTION
from tests.system.cluster.conftest import PASSWORD, Operator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), only_thorough]


@pytest.fixture(scope="module")
def serving_cluster(shared_folder: Path, inputs: tuple[Path, Path]) -> Iterator[Cluster]:
    program = f'#!/bin/sh\nexec {sys.executable} -m tests.support.machines.plain_vllm "$@"\n'
    (shared_folder / "bin" / "vllm").write_text(program)
    (shared_folder / "bin" / "vllm").chmod(0o755)
    path = f"{shared_folder / 'bin'}:{Path(sys.executable).parent}:/usr/bin:/bin"
    image = {"PATH": path, "PYTHONPATH": str(ROOT)}
    with Cluster(nodes=1, image_paths=(shared_folder, inputs[0].parent), image_environment=image) as cluster:
        cluster.patience_sec = 1200.0  # a server loads its model
        yield cluster


@pytest.fixture
def operator(serving_cluster: Cluster, make_trainer: Callable[..., Operator]) -> Iterator[Operator]:
    operator = make_trainer(serving_cluster)
    yield operator
    operator.inv("teardown", "--yes", "--discard-results")


def test_what_was_trained_is_what_is_served(operator: Operator) -> None:
    operator.inv("train")
    assert "Held-out loss" in operator.inv("collect", "report")
    run = (operator.results / "latest").resolve()
    assert "Held-out loss" in (run / "report" / "index.html").read_text()

    assert "as trained" in operator.inv("adapter.check", "--answers=4")
    output = operator.inv("adapter.merge", "--base=nf4", "adapter.check", "--answers=4")
    assert "the merged folder" in output
    forms = {form["name"]: form for form in json.loads((run / "adapter-check.json").read_text())["forms"]}
    evaluations = json.loads((run / "training.json").read_text())["evaluations"]
    recorded = [evaluation["loss"] for evaluation in evaluations if evaluation["is_best"]][-1]
    assert forms["trained"]["loss"] == pytest.approx(recorded, abs=0.002)
    assert forms["folder"]["loss"] == pytest.approx(forms["merged-nf4"]["loss"], abs=1e-6), (
        "the files have the merged weights"
    )
    folder = forms["folder"]
    assert folder["change_low"] <= 0.0 <= folder["change_high"] or abs(folder["change"]) < 0.002, (
        "in plain transformers"
    )

    answer = operator.inv("chat", stdin=f"{QUESTION}\n")
    assert answer.strip()
    output = operator.inv("serve", "serve.check", "cluster", stdin=f"{PASSWORD}\n")
    assert f"run {run.name} as tuned" in output
    assert f"answers like run {run.name}" in output
    operator.inv("serve.stop")
