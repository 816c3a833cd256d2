"""From a run's folder to verified results and data frames.

load: loading of a folder: verifies every result, lists unusable files
validation: checks of records for impossible values
run: the loaded run: configurations, results, data frames of trials and steps; its report folder
measurements: the data frame of measurements, their titles and units; selection by name, combined over workers
attempts: attempts and their start times from the ledger
fingerprint: the device, differences between trials, CPU contention
reference_results: published results, and whether a run measured the same
"""
