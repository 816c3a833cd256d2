"""What is said of an image, for others' tools and for admission.

bom: what an image is made of and how it was built
signature: a signature by the user's own key, in cosign's layout
"""
