"""`python -m trainer.checkpoint RUN [list|verify|prune]`: list, verify or remove the checkpoints of a run."""

import sys

from trainer.checkpoint.command import main

if __name__ == "__main__":
    sys.exit(main())
