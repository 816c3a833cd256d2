"""Pods as hosts, by `kubectl exec`.

host: runs commands in the current pod of an index, by frames that it exchanges with the exec relay
kubectl: builds kubectl's argv, explains its errors; exceptions about a cluster
pod_index: caches the fleet's pods and selects the one of an index
"""
