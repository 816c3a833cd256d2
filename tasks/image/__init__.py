"""`inv build`, `push`, `image.*`, `model.*` and `vm.*`."""
