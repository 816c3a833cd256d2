"""From a run's folder to verified results and data frames.

load: reads a folder, verifies every result, lists what cannot be used
faults: what makes a sealed record impossible
run: what was read: configurations, results, the frames of trials and steps; the folder of its report
measurements: the frame of measurements; names to words and units
readings: measurements picked out by name, over workers
telemetry: telemetry.csv as a frame
steps: a training's steps.jsonl, what it has measured so far
attempts: attempts as the ledger has them, and when they were started
fingerprint: the device, what differs between trials, contention
published: published results, and whether a run measured the same
"""
