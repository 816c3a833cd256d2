"""The worker's package on the oldest Python of an image (profile `reference`).

Not covered: what runs only with torch, which that Python lacks here.
"""

import json
import subprocess

from tests.support.hosts.pythons import other_python
from tests.support.paths import ROOT

PROGRAM = """
import importlib, json, pkgutil, sys
sys.path.insert(0, sys.argv[1])
import bench
missing = set()
for module in pkgutil.walk_packages(bench.__path__, "bench."):
    if module.name != "bench.__main__":
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            missing.add(error.name)
print(json.dumps(sorted(missing)))
"""


def test_every_module_imports_but_for_installed_libraries():
    argv = (other_python("3.10"), "-I", "-S", "-B", "-c", PROGRAM, str(ROOT))
    done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=120)
    assert set(json.loads(done.stdout)) <= {"jwt", "oci", "pyarrow", "safetensors", "torch", "triton"}
