"""`inv nodes`, `deploy`, `teardown`, `status` and `logs`.

commands    the commands, with their flags and help
node_list   nodes that can run a pod, and the findings on the others
checks      nodes, controllers, and results that would be lost, before a plan changes the cluster
deploy      observe, plan, apply, wait; delete the objects of a deployment
pod_status  the pods, a wait for them, their logs
"""
