"""`inv nodes`, `deploy`, `teardown`, `status`, `shell` and `logs`."""
