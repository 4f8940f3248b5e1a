"""`python -m trainer.finetune --task T --model EXPORT --data DIR --output DIR key=value`."""

from pipeline.console import exit_with
from trainer.finetune.command import main

if __name__ == "__main__":
    exit_with(main())
