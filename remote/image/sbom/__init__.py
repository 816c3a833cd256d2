"""Documents and signatures of an image, for scanners and admission control.

bom: bills of materials and build provenance
signature: a signature with the user's own key, in cosign's format
"""
