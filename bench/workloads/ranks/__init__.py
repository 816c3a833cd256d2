"""ranks: the ranks of a trial, for every ranked workload.

launcher: starting the ranks of a trial, following them, raising what ended them
watch: starting, watching and ending the ranks of one machine
multi_node: ranks on several machines
process: the process of one rank: device, heartbeat, reports, failure
"""
