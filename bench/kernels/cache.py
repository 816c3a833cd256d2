"""Triton's cache, filled from a folder of kernels that were compiled before (`bench.commands.kernels`).

Triton takes it from TRITON_CACHE_MANAGER=bench.kernels.cache:SeededCache. It copies what it needs from the folder
QLORA_FLEET_KERNELS to TRITON_CACHE_DIR, where everything else is compiled as usual.
"""

import json
import os
import shutil
from pathlib import Path

from triton.runtime.cache import FileCacheManager

KERNELS_VARIABLE = "QLORA_FLEET_KERNELS"
MANAGER = "bench.kernels.cache:SeededCache"


class SeededCache(FileCacheManager):
    """The files of one key: a kernel or a launcher."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        super().__init__(key, override, dump)
        seed, folder = Path(os.environ.get(KERNELS_VARIABLE) or os.devnull, key), Path(self.cache_dir)
        if not (override or dump) and seed.is_dir() and not any(folder.iterdir()):
            made = folder.with_name(f"{key}.{os.getpid()}")  # renamed when it is complete: other ranks do the same
            shutil.copytree(seed, made)
            try:
                made.replace(folder)
            except OSError:  # another rank was first
                shutil.rmtree(made)

    def get_group(self, filename: str) -> dict[str, str] | None:
        """Override. Triton writes absolute paths, which were those of another folder."""
        path = Path(self.cache_dir, f"__grp__{filename}")
        if not path.exists():
            return None
        names = json.loads(path.read_text(encoding="utf-8"))["child_paths"]
        return {name: str(path.with_name(name)) for name in names}
