"""`python -m trainer.checkpoint RUN [list|verify|prune]`: what the checkpoints of a run are worth, and which may go."""

import sys

from trainer.checkpoint.command import main

if __name__ == "__main__":
    sys.exit(main())
