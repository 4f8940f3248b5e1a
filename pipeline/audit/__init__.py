"""The auditor of finished data sets: `python -m pipeline.audit DIR [--json]`.

It shares the contract with the build and the published numbers, but none of the code that makes pairs, masks and
shards, so that a fault there is seen here.
"""
