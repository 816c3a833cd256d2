"""The build VM: models brought there, the image built and pushed there.

artifact: files in a registry, as ORAS lays them out
context: what goes into the build context
documents: what is said of an image, for others' tools
engine: the container engine, its data-root and its disks
ground: our folder below --tmpdir
modelfetch: brings models to the VM
names: names of registries, images and users, checked
onvm: what runs on the VM
plan: what a build does
podcheck: a pod that runs the image's self-check once
registry: login, and the record of a push
sdk: reads images and runs check containers through the docker SDK
vm: what the VM is
vmjob: long work on the VM as one detached job
"""
