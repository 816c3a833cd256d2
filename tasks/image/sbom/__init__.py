"""What is said of an image: its documents, its signature, and both as the registry has them.

write  `inv image.bom`: the documents, into files and beside the image
audit  known vulnerabilities of the lock's packages
sign   a signature by the key of image.sign_key
show   `inv image.show`: what stands beside a pushed image
"""
