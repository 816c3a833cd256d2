"""What may be set, and which layer (file, environment, flag) each setting comes from."""
