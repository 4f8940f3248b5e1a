"""`python -m trainer.show`."""

from pipeline.console import exit_with
from trainer.show import main

if __name__ == "__main__":
    exit_with(main())
