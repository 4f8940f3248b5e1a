"""`python -m trainer.features --model EXPORT --input TEXTS --output VECTORS key=value`."""

from pipeline.console import exit_with
from trainer.features.command import main

if __name__ == "__main__":
    exit_with(main())
