"""The auditor of finished data sets: `python -m pipeline.audit DIR [--json]`.

It shares the definition of a data set and a few constants with the build, but no code that makes pairs, masks or
shards. It can therefore find faults of that code.
"""
