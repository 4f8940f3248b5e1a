"""The pipeline's config: where text comes from and how it becomes sentence pairs.

Everything here but `workers`, `engine`, `dask`, `ray`, `output`, `not_next_bounds`, `cleaning.keep_rejects` and
`download` shapes the data and enters the manifest.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from pipeline.config.engines import DaskConfig, EngineName, RayConfig
from pipeline.settings import Settings, to_tree

SourceKind: TypeAlias = Literal["wikipedia", "books", "text", "jsonl", "parquet"]
NextSentence: TypeAlias = Literal["random_document", "sentence_order", "none"]
Masking: TypeAlias = Literal["whole_word", "token", "span"]
Mode: TypeAlias = Literal["strict", "reference"]

Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]


class SourceConfig(Settings):
    """One source of documents."""

    kind: SourceKind
    """wikipedia: XML dump (.xml, .bz2, .gz, .xz, .zst). books: a file a document. text: a sentence a line, blank line
    between documents. jsonl, parquet: records with a text column."""
    path: str | tuple[str, ...]
    """A file, a folder, a glob, an s3:// or gs:// URL of one, or a list of them."""
    language: str = "en"
    """Language code for sentence boundaries and Wikipedia's localised names, such as en, ko, de."""
    clean_documents: str | None = None
    """Folder that keeps the cleaned documents as Parquet: written by the first reading, and read by later builds and
    vocabulary training instead of parsing again. Sources may share it. Never changes the data."""
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] | None = None
    """What counts, report and held-out losses call the source; null: kind and language, such as books-en. Sources of
    one name count as one and have one weight."""
    weight: Annotated[float, Field(gt=0.0, le=1_000.0)] = 1.0
    """Share of the source in a mixture: weight x passes is the mean number of passes over its training documents.
    What the product lacks of a whole number is made up by the documents' hashes: 2.5 gives half of them a third pass;
    where it is below 1, that share of documents is kept and the rest counted as dropped by weight. Held-out
    documents are dropped alike but never repeated for a weight above 1."""
    unit: Literal["book", "chapter"] = "book"
    """books: what a document is. chapter: by headings in English, French, German and Korean; a book without any stays
    one document and is counted."""
    encoding: str = "auto"
    """books, text: the files' encoding, such as cp949; what does not decode is refused with file and byte. auto: text
    is UTF-8; books by byte order mark, else UTF-8, also with a few bad bytes (left out, counted), else windows-1252
    where nearly all is ASCII (counted), else refused."""
    row: Literal["document", "sentence"] = "document"
    """jsonl, parquet: what a row is."""
    text_column: str = "text"
    """jsonl, parquet: the column (field) that holds the text."""
    document_column: str | None = None
    """jsonl, parquet with row: sentence: a column whose change of value ends a document."""
    blank_row_ends_document: bool = False
    """jsonl, parquet with row: sentence: an empty row ends a document."""
    rows_per_document: Positive | None = None
    """jsonl, parquet with row: sentence: a document ends after so many rows. text: also after so many lines."""

    @property
    def called(self) -> str:
        """`name`, derived where null."""
        return self.name or f"{self.kind}-{self.language}"

    @property
    def paths(self) -> tuple[str, ...]:
        """`path` as a tuple."""
        return (self.path,) if isinstance(self.path, str) else self.path

    @model_validator(mode="after")
    def _check_rows(self) -> SourceConfig:
        bounds = (
            self.document_column is not None,
            self.blank_row_ends_document,
            self.rows_per_document is not None,
        )
        if self.unit != "book" and self.kind != "books":
            raise ValueError(f"unit: {self.unit} goes with kind books, not with kind {self.kind}; remove it")
        self._check_encoding()
        if self.kind not in ("jsonl", "parquet"):
            lines = self.kind == "text" and self.row == "document" and not any(bounds[:2])
            if (self.row != "document" or any(bounds)) and not lines:
                raise ValueError(
                    f"row, document_column, blank_row_ends_document and rows_per_document go with jsonl "
                    f"and parquet, not with kind {self.kind}; remove them"
                )
        elif self.row == "sentence" and sum(bounds) != 1:
            raise ValueError(
                "row: sentence needs to know where documents end (without, next-sentence labels would cross books): "
                "set exactly one of document_column, blank_row_ends_document: true, rows_per_document"
            )
        elif self.row == "document" and any(bounds):
            raise ValueError("document_column, blank_row_ends_document and rows_per_document need row: sentence")
        if not self.paths or not all(self.paths):
            raise ValueError("path is empty; give a file, a folder or a glob")
        return self

    def _check_encoding(self) -> None:
        if self.encoding == "auto":
            return
        if self.kind not in ("books", "text"):
            raise ValueError(f"encoding goes with kinds books and text, not with kind {self.kind}; remove it")
        try:
            same = "a\n".encode(self.encoding) == b"a\n"
        except (LookupError, UnicodeError, TypeError) as error:
            raise ValueError(f"encoding: {self.encoding} is no text encoding that Python knows; correct it") from error
        if self.kind == "text" and not same:
            raise ValueError(
                f"encoding: {self.encoding} has no line breaks of one byte, which kind text needs; convert the files"
            )


class VocabularyConfig(Settings):
    """Which vocabulary to use, or how to train one."""

    path: str | None = None
    """vocab.txt or tokenizer.json, or a folder with one (tokenizer.json first), a path or URL. Without it a vocabulary
    is trained from the sources."""
    train: bool = False
    """Train a vocabulary into `path` where that file is not there yet."""
    algorithm: Literal["wordpiece", "bpe", "byte_level_bpe"] = "wordpiece"
    """Training: kind of subword units."""
    criterion: Literal["likelihood", "frequency"] = "likelihood"
    """Training of wordpiece: merge by p(st)/(p(s)p(t)), or by pair count."""
    size: Annotated[int, Field(ge=110)] = 30_522
    """Training: number of entries, special and unused ones included."""
    min_pair_count: Positive | None = None
    """Training: pairs seen less often are never merged. null: 2 for frequency; for likelihood the bound falls from the
    count of the most frequent pair, by a fifth whenever no pair reaches it, down to 2."""
    lowercase: bool = True
    """Lower-case text (uncased vocabulary)."""
    strip_accents: bool | None = None
    """Remove accents; null: as `lowercase` says."""
    hangul: Literal["syllables", "jamo"] = "syllables"
    """Training: keep Hangul syllables whole, or take them apart into their letters, as the published uncased
    vocabularies do; jamo needs strip_accents. A given vocabulary says by its entries which of the two it is."""

    @model_validator(mode="after")
    def _check_path(self) -> VocabularyConfig:
        if self.train and self.path is None:
            raise ValueError("vocabulary.train: true needs vocabulary.path, the file to train into")
        strips = self.lowercase if self.strip_accents is None else self.strip_accents
        if self.hangul == "jamo" and not strips:
            raise ValueError("hangul: jamo takes all characters apart, so it needs strip_accents: true; set it")
        return self


class NearDuplicatesConfig(Settings):
    """Which documents count as near duplicates, and how hard to look for them."""

    threshold: Annotated[float, Field(gt=0.0, le=1.0)] = 0.8
    """Documents that share at least this part of their shingles (Jaccard) are near duplicates. The share is estimated
    from `permutations` values: its standard deviation at the default is 0.035."""
    shingle_words: Annotated[int, Field(ge=1, le=32)] = 5
    """Words of a shingle: every run of so many words, without case and punctuation. A Chinese, Japanese or Thai
    character is a word."""
    permutations: Annotated[int, Field(ge=16, le=1024)] = 128
    """Values of a document's MinHash signature; more find more surely, at a cost in time."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 1
    """Seed of the permutations."""


class CleaningConfig(Settings):
    """Which documents are left out. A document is measured after cleaning; every filter is off by default."""

    min_words: Positive | None = None
    """Leave out documents with fewer words (between spaces)."""
    max_words: Positive | None = None
    """Leave out documents with more words (between spaces)."""
    min_characters: Positive | None = None
    """Leave out documents with fewer characters; where words are not spaced, use this instead of min_words."""
    max_characters: Positive | None = None
    """Leave out documents with more characters."""
    max_repeated_lines: Share | None = None
    """Leave out documents where a larger share of the sentences has stood in the document before."""
    max_symbols: Share | None = None
    """Leave out documents where a larger share of the characters (spaces not counted) is no letter, digit or mark."""
    min_script: Share | None = None
    """Leave out documents where a smaller share of the letters is of the script of the source's language."""
    min_stop_words: Share | None = None
    """Leave out documents where a smaller share of the words is among the commonest of the source's language. English
    prose has 0.35 to 0.5, other languages have 0.0 to 0.1 by the English list. Documents of fewer than 20 words, and
    sources in a language without a list, are not measured."""
    near_duplicates: NearDuplicatesConfig | None = None
    """Leave out near duplicates; {} for the defaults. Of two, the one with more words stays (equal: the one with the
    smaller hash); a document is left out only for one that stays."""
    keep_rejects: str | None = None
    """Folder to write rejects.jsonl into: source, name, reason, detail and text of every document that these settings
    leave out, and of duplicates. OUT/_tmp needs room for the corpus as text meanwhile."""

    @property
    def measures_documents(self) -> bool:
        """Whether any filter of single documents is on."""
        return any(
            value is not None
            for name, value in self.__dict__.items()
            if name not in ("near_duplicates", "keep_rejects")
        )

    @model_validator(mode="after")
    def _check_bounds(self) -> CleaningConfig:
        for unit in ("words", "characters"):
            low, high = getattr(self, f"min_{unit}"), getattr(self, f"max_{unit}")
            if low is not None and high is not None and low > high:
                raise ValueError(f"min_{unit}={low} is more than max_{unit}={high}, so no document is left")
        return self


class DumpConfig(Settings):
    """One Wikipedia's articles, fetched as a dump."""

    language: str
    """Language code as in Wikipedia's addresses, such as en."""
    date: Annotated[str, Field(pattern=r"^\d{8}$")]
    """Day of the dump in quotation marks, such as "20261101"."""
    folder: str
    """Where its files go; a source reads them from there."""


class DownloadConfig(Settings):
    """What `make download` (`python -m pipeline.download config FILE`) fetches, and what it cannot. A build reads none
    of it."""

    wikipedia: tuple[DumpConfig, ...] = ()
    """Dumps to fetch."""
    bring: dict[str, str] = Field(default_factory=dict)
    """How to get the files of a source, by the source's name; said where they are missing."""
    mirror: str = "https://dumps.wikimedia.org"
    """Address of a server that is laid out as dumps.wikimedia.org; the option --mirror overrides it."""

    @model_validator(mode="after")
    def _check_mirror(self) -> DownloadConfig:
        if not is_web_address(self.mirror):
            raise ValueError(f"mirror={self.mirror}: give an address that begins with https:// or http://")
        return self


def is_web_address(address: str) -> bool:
    """Whether this begins with https:// or http:// and names a host."""
    try:
        parts = urlsplit(address)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False


class PipelineConfig(Settings):
    """Settings of `pipeline/run.py`."""

    sources: tuple[SourceConfig, ...]
    """Where the text comes from."""
    vocabulary: VocabularyConfig = VocabularyConfig()
    """Which vocabulary to use, or how to train one."""
    cleaning: CleaningConfig = CleaningConfig()
    """Which documents are left out."""
    output: str
    """Folder of the data set, or its s3:// or gs:// URL; must be absent, empty, or an unfinished or finished build
    with the same settings."""
    mode: Mode = "strict"
    """strict: the published algorithm with its known faults mended. reference: token for token as published."""
    max_seq_length: Annotated[int, Field(ge=8, le=65_535)] = 512
    """Longest row in tokens, specials included."""
    max_predictions: Positive | None = None
    """Most masked positions of a row; null: masked_probability x max_seq_length, rounded up."""
    masking: Masking = "whole_word"
    """What is masked together: a whole word, a single token, or a span of words."""
    replacement_draw: Literal["word", "piece"] | None = None
    """Whether [MASK], keep or replace (80/10/10) is drawn for a whole word (span) or for each piece; null: for the
    word in strict mode, for the piece in reference mode."""
    masked_probability: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.15
    """Share of tokens to predict."""
    masks_per_pair: Annotated[int, Field(ge=1, le=255)] = 1
    """K, mask sets stored beside each pair; epoch e of training uses set e mod K."""
    passes: Annotated[int, Field(ge=1, le=65_535)] = 1
    """Passes over the corpus, each with other pairs."""
    short_sequence_probability: Fraction = 0.1
    """Share of pairs with a shorter target length."""
    next_sentence: NextSentence = "random_document"
    """How half of the second segments are chosen wrong: from another document, by swapping the two, or no pairs."""
    not_next_bounds: tuple[Share, Share] | None = None
    """A build fails where the share of pairs whose second segment does not follow is outside, over 400 pairs or more;
    null: 0.4 to 0.6, in reference mode 0.4 to 0.75. [0, 1] never fails. Warnings begin halfway."""
    validation_fraction: Fraction = 0.01
    """Share of documents held out, by hash of their text; 0 for none."""
    shards: Positive | Literal["auto"] = "auto"
    """Number of training shards; auto: one for about 64 MB of text."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 12_345
    """Seed of every draw."""
    workers: Positive | None = None
    """Worker processes; null: all cores, with engine ray all that the nodes of now have room for. Never changes the
    data."""
    engine: EngineName = "local"
    """Where they are, also as --engine NAME: processes of this machine; dask: those of a Dask cluster; ray: actors on a
    Ray cluster. Options of Beam after -- may name any other. Never changes the data."""
    dask: DaskConfig = DaskConfig()
    """engine: dask."""
    ray: RayConfig = RayConfig()
    """engine: ray."""
    download: DownloadConfig = DownloadConfig()
    """What is fetched before a build, and from where."""

    @property
    def predictions(self) -> int:
        """max_predictions, derived where null."""
        if self.max_predictions is not None:
            return self.max_predictions
        return max(1, -int(-self.masked_probability * self.max_seq_length // 1))

    @property
    def source_names(self) -> tuple[str, ...]:
        """Names of the sources, each once, the greatest weight first, equal ones in order of name.

        A document's source is an index into this; of a text that stands in two sources, the lower one.
        """
        weights = {source.called: source.weight for source in self.sources}
        return tuple(sorted(weights, key=lambda name: (-weights[name], name)))

    @property
    def source_weights(self) -> tuple[float, ...]:
        """The weight of each of `source_names`."""
        weights = {source.called: source.weight for source in self.sources}
        return tuple(weights[name] for name in self.source_names)

    def _check_weights(self) -> None:
        weights: dict[str, float] = {}
        for source in self.sources:
            if weights.setdefault(source.called, source.weight) != source.weight:
                raise ValueError(
                    f"two sources are called {source.called} but have weights {weights[source.called]:g} and "
                    f"{source.weight:g}; give one of them a name"
                )
            if self.mode == "reference" and source.weight != 1.0:
                raise ValueError(
                    f"mode: reference reads each document `passes` times, not by weight={source.weight:g}; remove it"
                )
            if source.weight * self.passes > 65_534:
                raise ValueError(f"weight={source.weight:g} times passes={self.passes} is above 65,534; lower one")

    @model_validator(mode="after")
    def _check_together(self) -> PipelineConfig:
        if not self.sources:
            raise ValueError("sources is empty; list at least one source")
        self._check_weights()
        for name in self.download.bring:
            if name not in self.source_names:
                raise ValueError(
                    f"download.bring.{name}: no source is called {name} (there are {', '.join(self.source_names)}); "
                    f"correct it"
                )
        if self.not_next_bounds is not None and self.not_next_bounds[0] > self.not_next_bounds[1]:
            raise ValueError(f"not_next_bounds={list(self.not_next_bounds)}: the first must not exceed the second")
        if self.predictions > self.max_seq_length - 2:
            raise ValueError(
                f"max_predictions={self.predictions} exceeds what max_seq_length={self.max_seq_length} can hold "
                f"({self.max_seq_length - 2} tokens beside [CLS] and [SEP]); lower it"
            )
        if self.mode == "reference" and self.next_sentence != "random_document":
            raise ValueError(f"mode: reference knows next_sentence: random_document only, not {self.next_sentence}")
        if self.mode == "reference" and self.replacement_draw == "word":
            raise ValueError("mode: reference draws 80/10/10 for each piece; remove replacement_draw: word")
        if self.mode == "reference" and self.masks_per_pair != 1:
            raise ValueError(
                f"mode: reference has one mask set a pair, not masks_per_pair={self.masks_per_pair}; "
                f"raise passes instead"
            )
        if self.mode == "reference" and self.masking == "span":
            raise ValueError("mode: reference knows masking: whole_word and token, not span")
        return self

    def data_tree(self) -> dict[str, object]:
        """The settings that shape the data: all but output, engine, workers, download, limits and folders of inputs."""
        tree = to_tree(self)
        del tree["output"], tree["workers"], tree["download"], tree["engine"], tree["dask"], tree["ray"]
        del tree["not_next_bounds"], tree["cleaning"]["keep_rejects"]
        for source in tree["sources"]:
            del source["path"], source["clean_documents"]
        tree["vocabulary"].pop("path")
        tree["sources"].sort(key=lambda source: sorted(map(str, source.items())))
        return tree
