"""Shows what a model sees: attention maps, guesses, next-sentence predictions and vectors of a word, as one HTML page.

Rooms' order of reading: passes.py computes, words.py finds a word and compares its vectors, page.py writes the page
around page.html, whose script draws the attention. The page opens without a network.
"""

from trainer.show.command import main
