"""What a build will cost, from a sample of its input that goes through the code of the build."""

from pipeline.estimate.dry_run import describe_build

__all__ = ["describe_build"]
