"""`inv build`, `push`, `image.*`, `model.*` and `vm.prune`: the build VM and the image.

commands        the commands, with their flags and help
build           build the image, as a job on the build VM
push            push the image to the registry, record its digest in results/image.json
verify          check that an image is intact and a trial runs in it, on the build VM or on a GPU node
archive         save the image to a file
vm_work         follow a job on the VM, save its log, cancel it
build_profiles  image/profiles.yaml, the image's name, the locks
model           the demo model; download models to the VM
vm              free the disk of the VM's engine
"""
