"""Lists, verifies or removes the checkpoints of a run: `python -m trainer.checkpoint RUN [list|verify|prune]`."""

import sys

from trainer.checkpoint.command import main

if __name__ == "__main__":
    sys.exit(main())
