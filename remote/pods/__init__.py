"""A pod as a host, by `kubectl exec`."""
