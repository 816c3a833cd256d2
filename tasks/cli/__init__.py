"""How Invoke runs here: the executor, repairs at start-up, the lock of a run, the terminal."""
