"""Program that prints the names in FOLDER as a JSON list, empty if it does not exist: `python -c THIS FOLDER`."""

import json
import os
import sys

if __name__ == "__main__":
    folder = sys.argv[1]
    sys.stdout.write(json.dumps(os.listdir(folder) if os.path.isdir(folder) else []))
