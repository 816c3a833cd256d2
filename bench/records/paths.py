"""Names of files, folders and environment variables shared by the operator's machine, the hosts and the report.

| in | name | written by |
|---|---|---|
| results/ | IMAGE_FILE | `inv push`: the image and its digest |
| results/<run-id>/ | RUN_FILE | the plan, before anything starts |
| | LEDGER_FILE | the fleet: one line per event, append-only |
| | SUMS_FILE | `inv collect`: the sha256 of every file; a model's folder has one too |
| | QUALITY_FILE | `inv bench --quality`: held-out losses against the reference |
| | TRIALS_FOLDER/<trial-id>/ | one folder per trial |
| | REPORT_FOLDER/ | `inv report` |
| a trial's folder | RESULT_FILE | the trial's process, last |
| | PROGRESS_FILE, TELEMETRY_FILE, ENVIRONMENT_FILE | the trial's process, while it runs |
| | ADAPTER_CHECK_FILE | `inv adapter.check` |
| a training's folder | TRAINING_FILE, ADAPTER_FOLDER with BASE_FILE | the trial's process, before its result |
| CHECKPOINTS_FOLDER | RESTARTS_FILE | each attempt of a training, as it resumes and after its first step |
| a training's runs on its host or volume | JOB_END_FILE | its host or first pod, last |
| | LOSS_FILE | in an attempt's folder, why another attempt follows it |
| | COLLECTED_FILE | `inv collect`, if the folder is lost with its pod, which waits for it |

`remote.fleet.gang_agent` sets the rank variables of each machine of a trial;
`bench.workloads.ranks.multi_node` reads them.
"""

IMAGE_FILE = "image.json"
RUN_FILE = "run.json"
LEDGER_FILE = "ledger.jsonl"
QUALITY_FILE = "quality.json"
SUMS_FILE = "SHA256SUMS"
TRIALS_FOLDER = "trials"
REPORT_FOLDER = "report"
RESULT_FILE = "result.json"
PROGRESS_FILE = "progress.json"
TELEMETRY_FILE = "telemetry.csv"
ENVIRONMENT_FILE = "environment.json"
TRAINING_FILE = "training.json"
ADAPTER_FOLDER = "adapter"
BASE_FILE = "base.json"
ADAPTER_CHECK_FILE = "adapter-check.json"
CHECKPOINTS_FOLDER = "checkpoints"
RESTARTS_FILE = "restarts.json"
MANIFEST_FILE = "MANIFEST.json"  # written last in a checkpoint: {"files": {name: {"sha256": ...}}} and more

NODE_COUNT, NODE_RANK = "QLORA_FLEET_NODES", "QLORA_FLEET_NODE_RANK"
NODE_ADDRESS, NODE_PORT, NODE_TOKEN = "QLORA_FLEET_RANK0_ADDRESS", "QLORA_FLEET_RANK0_PORT", "QLORA_FLEET_GANG"
JOB_SPEC_VARIABLE, JOB_END_FILE = "QLORA_FLEET_JOB_SPEC", "end-{turn}.json"
COLLECTED_FILE, LOSS_FILE = "collected", "lost.json"
NODE_NAME_VARIABLE = "QLORA_FLEET_NODE_NAME"  # the pod's node

# Model folder and data file of `python -m bench demo`, of the small model and, for True, of the real one.
DEMO_INPUTS = {
    False: ("models/qlora-fleet--tiny-mistral", "data/python-docs.jsonl"),
    True: ("models/HuggingFaceTB--SmolLM2-135M-Instruct", "data/orders.jsonl"),
}
