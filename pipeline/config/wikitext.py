"""The settings that say how the markup of Wikipedia becomes text."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pipeline.settings import Settings

Treatment: TypeAlias = Literal["drop", "sentences", "keep"]


class WikitextConfig(Settings):
    """What becomes of the parts of Wikipedia articles that are not prose."""

    lists: Treatment = "drop"
    """List items. drop: leave them out, as the BERT paper does; lines outside of lists that are indented (by
    : or a space) stay if they are whole sentences, as quotations are. sentences: keep the items that are whole
    sentences. keep: keep all. Items left out are counted as list_item."""
    tail_sections: Treatment | None = None
    """Sections like References, See also, Further reading, External links and Discography, known by their headings in
    138 languages. drop, sentences: the same for all their lines. keep: treat them like other sections. null: same as
    `lists`. Sections of which something was left out are counted as tail_section."""

    @property
    def tails(self) -> Treatment:
        """What becomes of sections at the end of an article, such as References. This is the value of the setting
        `tail_sections` or, if it is null, of the setting `lists`."""
        return self.tail_sections or self.lists
