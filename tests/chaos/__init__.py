"""`make chaos`: faults put into real runs from outside, and what came of the promises of docs/RELIABILITY.md.

A fault is a function from a Stage to a Finding; each module of faults lists its own in FAULTS. Nothing here reaches
into the trainer but chaos/poisoned_run.py, which puts NaN into a gradient.
"""
