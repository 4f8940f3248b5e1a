"""`python -m trainer.ablate`."""

from pipeline.console import exit_with
from trainer.ablate import main

if __name__ == "__main__":
    exit_with(main())
