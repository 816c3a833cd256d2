"""From a run's folder to data frames."""
