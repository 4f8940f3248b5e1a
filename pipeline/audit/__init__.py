"""The auditor of finished data sets: `python -m pipeline.audit DIR [--json]`.

It shares the contract and the published numbers with the build, but none of the code that makes pairs, masks and
shards, so that it finds faults of that code.
"""
