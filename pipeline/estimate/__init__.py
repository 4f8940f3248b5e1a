"""Estimates what a build costs, by running a sample of its input through the code of the build."""

from pipeline.estimate.dry_run import describe_build
