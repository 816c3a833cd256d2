"""A benchmark and a training over pods with provider generic: no output names a cloud."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import inv_pods
from tests.support.cloud_words import CLOUD_WORDS
from tests.support.hosts.fake_worker_finetune import install_fake_finetune
from tests.support.hosts.fake_worker_training import install_fake_training
from tests.support.kubernetes import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PODS = 2


def _install_fakes(folder: Path) -> Path:
    install_fake_finetune(folder)
    return install_fake_training(folder)


workspace, cluster = inv_pods.fixtures(PODS, _install_fakes)


def test_no_output_of_a_benchmark_and_a_training_names_a_cloud(project: Any, cluster: Cluster, workspace: Path) -> None:
    settings = inv_pods.settings_of(cluster, workspace, "generic")
    settings["cluster"]["provider"] = "generic"
    settings["train"] = {"max_steps": 3, "max_seq_len": 256}
    (project.folder / "pods.yaml").write_text(json.dumps(settings))
    project.options = ("-f", "pods.yaml")
    commands = (("bench", "--quick"), ("collect",), ("report",), ("train", "--dry-run"), ("train",), ("runs",))
    outputs = [completed.stdout + completed.stderr for completed in (project.inv(*argv) for argv in commands)]
    assert [output for output in outputs if CLOUD_WORDS.search(output)] == []
