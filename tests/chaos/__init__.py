"""A random walk over `inv build`, `push`, `deploy`, `bench` and `collect`, with faults drawn at random, checked by what
must hold whatever befalls: no false success, nothing lost, one end for each trial, an exit code that is true, nothing
left running, bounded time and memory. `python -m tests.chaos --seed 7 --minutes 30`

__main__     the command line
walk         one command at a time, disturbed or killed, and what holds for every command
over_pods    deploy, bench, collect over a cluster's pods, and what holds for their runs
over_vm      build and push over a build VM and its registry, and what holds for the image
dice         faults of a cluster
"""
