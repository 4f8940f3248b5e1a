"""Opens a data set as torch datasets, for transformers' Trainer, Lightning and plain loops.

PairDataset has a length and takes indices; PairStream reads from disk in a random order, and PairLoader batches it and
knows its place. Both datasets give the tensors that transformers' BertForPreTraining takes; Collator makes batches of
them. Needs torch, and nothing else that pipeline does
not need.
"""

from pipeline.torch_data.collate import Collator
from pipeline.torch_data.loader import PairLoader
from pipeline.torch_data.pairs import PairDataset
from pipeline.torch_data.stream import PairStream
