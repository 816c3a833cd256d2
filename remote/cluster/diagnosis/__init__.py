"""Why a pod does not come up: pure functions on the API's JSON."""
