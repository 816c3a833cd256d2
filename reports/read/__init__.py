"""From a run's folder to verified results and data frames.

run_folder: loading of a folder: verifies every result, lists unusable files
impossible_values: checks of records for impossible values
loaded_run: the loaded run: configurations, results, data frames of trials and steps; its report folder
measurements: the data frame of measurements, their titles and units; selection by name, combined over workers
attempts: attempts from the ledger, and its faults
worker_fingerprints: the device, differences between trials, CPU contention
reference_results: published results, and whether a run measured the same
"""
