"""The build VM: fetch models to it, build the image on it and push the image from it.

context: the files of the build context
engine: the container engine, its data-root and login, and the VM's disks
plan: computes a build from what was observed
references: validates names of registries, images and users
vm_jobs: long work on the VM as one detached job
settings: the settings of the build VM, the image, its registry and the model hub
"""
