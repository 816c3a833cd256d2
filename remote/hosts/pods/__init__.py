"""Pods as hosts, by `kubectl exec`.

errors: exceptions about a cluster
exec_protocol: our side of the protocol with the exec relay
host: runs commands in the current pod of an index
kubectl: builds kubectl's argv, explains its errors
pod_index: caches the fleet's pods and selects the one of an index
"""
