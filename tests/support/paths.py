"""Where the project's folder is, for tests at any depth."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
