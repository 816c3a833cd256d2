"""`inv build`, `push`, `image.*`, `model.*` and `vm.*`: the build VM and the image.

verbs     signatures and help
build     the image, as a job on the build VM
push      the image into the registry, its digest into results/image.json
verify    the proof that an image works
documents what it is made of, for others' tools, and its signature
size      its layers, and what a push, a pull and a node need
archive   the image as a file
jobs      a job on the VM: followed, its log kept, stopped by whoever started it
onnode    the same proof in a pod on a GPU node
reading   what the image's self-check says, read
profiles  image/profiles.yaml, the image's name, the locks
model     the demo model, and models brought to the VM
vm        the build VM, and an engine on it
"""
