"""SBOM, provenance and signature of an image.

write  `inv image.bom`: write the documents to files, attach them to the pushed image
audit  list known vulnerabilities of the locked packages
sign   sign a pushed image with the key of image.sign_key
show   `inv image.show`: show what the registry has attached to a pushed image
"""
