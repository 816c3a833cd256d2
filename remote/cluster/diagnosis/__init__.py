"""Diagnosis of pods that do not start: pure functions on the API's JSON.

finding: one problem with its cause and remedy, and the rules of rules.yaml
nodes: nodes that qualify for our pods, with a driver that the image supports
node_health: problems of a node's hardware, from its conditions and labels
pods: pods with their image pulls, Jobs and claims, and the scheduler's messages
readiness: state of each pod of a Job
"""
