"""Compares what the task names, and writes the outcome."""

import sys
from pathlib import Path

from fsdp2lint.prove.equality.apart import main

if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
