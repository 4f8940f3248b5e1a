"""The pipeline's config: where text comes from and how it becomes sentence pairs.

Every setting shapes the data and enters the manifest, except those that PipelineConfig.data_tree leaves out, such as
`workers`, `engine` and `output`.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from pipeline.config.cleaning import CleaningConfig
from pipeline.config.dictionaries import check_dictionary_words
from pipeline.config.engines import DaskConfig, EngineName, RayConfig
from pipeline.config.ranges import Fraction, Positive, Share
from pipeline.config.wikitext import WikitextConfig
from pipeline.settings import Settings, to_tree

SourceKind: TypeAlias = Literal["wikipedia", "books", "text", "jsonl", "parquet"]
NextSentence: TypeAlias = Literal["random_document", "sentence_order", "none"]
Masking: TypeAlias = Literal["whole_word", "token", "span"]
Mode: TypeAlias = Literal["strict", "reference"]


class SourceConfig(Settings):
    """The settings of one source of documents."""

    kind: SourceKind
    """Format of the files. wikipedia: XML dump (.xml, .bz2, .gz, .xz, .zst). books: one file per book. text: one
    sentence per line, a blank line between documents. jsonl, parquet: records with a text column."""
    path: str | tuple[str, ...]
    """A file, a folder, a glob, an s3:// or gs:// URL of one, or a list of them."""
    language: str = "en"
    """Language code for sentence boundaries and Wikipedia's localised names, such as en, ko, de."""
    clean_documents: str | None = None
    """Folder that keeps the cleaned documents as Parquet files. The first build or vocabulary training writes them;
    later ones read them instead of parsing again. Sources may share a folder. Never changes the data."""
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] | None = None
    """Name of the source in counts, report and held-out losses; null: kind and language, such as books-en. Sources with
    the same name count as one and must have the same weight and the same language."""
    weight: Annotated[float, Field(gt=0.0, le=1_000.0)] = 1.0
    """Share of the source in a mixture: weight x passes is the mean number of passes over its training documents.
    If it is not whole, hashes of the documents decide: 2.5 gives half of the documents a third pass; 0.3 keeps 30% of
    them and counts the rest as dropped by weight. Held-out documents are dropped in the same way, but a weight above 1
    never repeats them."""
    unit: Literal["book", "chapter"] = "book"
    """For kind books: what a document is. chapter: books are cut at headings in English, French, German or Korean; a
    book without headings stays one document and is counted."""
    encoding: str = "auto"
    """For kinds books and text: encoding of the files, such as cp949; bytes that do not decode are an error that names
    file and byte. auto: text is UTF-8. A book is decoded by its byte order mark, else as UTF-8, even with a few bad
    bytes (these are removed and counted), else as windows-1252 if nearly all is ASCII (counted), else refused."""
    wikitext: WikitextConfig | None = None
    """For kind wikipedia: what becomes of lists and of sections like References; null: as `wikitext` says for all
    sources."""
    row: Literal["document", "sentence"] = "document"
    """For kinds jsonl and parquet: what a row is."""
    text_column: str = "text"
    """For kinds jsonl and parquet: the column (field) that holds the text."""
    skip_without_text: bool = False
    """For kind jsonl: leave out objects without `text_column`, such as the index rows of CirrusSearch dumps, and count
    them. false: such an object is an error that names its line."""
    document_column: str | None = None
    """For kinds jsonl and parquet with row: sentence. A document ends when the value of this column changes. In Parquet
    it holds no lists."""
    blank_row_ends_document: bool = False
    """For kinds jsonl and parquet with row: sentence. An empty row ends a document."""
    rows_per_document: Positive | None = None
    """For kinds jsonl and parquet with row: sentence. A document ends after this number of rows. For kind text, it ends
    after this number of lines."""

    @property
    def display_name(self) -> str:
        """The name of the source. This is the setting `name` or, if `name` is null, the kind and language, such as
        books-en."""
        return self.name or f"{self.kind}-{self.language}"

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the source. If `path` is a single path, this is a tuple of one."""
        return (self.path,) if isinstance(self.path, str) else self.path

    def with_wikitext(self, shared: WikitextConfig) -> SourceConfig:
        """Return a copy with `wikitext` set to `shared` if this source has the kind wikipedia and its own `wikitext` is
        null. Return the source itself otherwise."""
        if self.kind != "wikipedia" or self.wikitext is not None:
            return self
        return self.model_copy(update={"wikitext": shared})

    @model_validator(mode="after")
    def _check_rows(self) -> SourceConfig:
        bounds = (self.document_column is not None, self.blank_row_ends_document, self.rows_per_document is not None)
        if self.unit != "book" and self.kind != "books":
            raise ValueError(f"unit: {self.unit} is for kind books, not for kind {self.kind}; remove it")
        if self.wikitext is not None and self.kind != "wikipedia":
            raise ValueError(f"wikitext is for kind wikipedia, not for kind {self.kind}; remove it")
        if self.skip_without_text and self.kind != "jsonl":
            raise ValueError(f"skip_without_text is for kind jsonl, not for kind {self.kind}; remove it")
        self._check_encoding()
        if self.kind not in ("jsonl", "parquet"):
            lines = self.kind == "text" and self.row == "document" and not any(bounds[:2])
            if (self.row != "document" or any(bounds)) and not lines:
                raise ValueError(
                    f"row, document_column, blank_row_ends_document and rows_per_document are for kinds jsonl and "
                    f"parquet, not for kind {self.kind}; remove them"
                )
        elif self.row == "sentence" and sum(bounds) != 1:
            raise ValueError(
                "row: sentence needs to know where documents end (otherwise next-sentence labels would cross books): "
                "set exactly one of document_column, blank_row_ends_document: true, rows_per_document"
            )
        elif self.row == "document" and any(bounds):
            raise ValueError(
                "document_column, blank_row_ends_document and rows_per_document need row: sentence; set it"
            )
        if not self.paths or not all(self.paths):
            raise ValueError("path is empty; give a file, a folder or a glob")
        return self

    def _check_encoding(self) -> None:
        if self.encoding == "auto":
            return
        if self.kind not in ("books", "text"):
            raise ValueError(f"encoding is for kinds books and text, not for kind {self.kind}; remove it")
        try:
            same = "a\n".encode(self.encoding) == b"a\n"
        except (LookupError, UnicodeError, TypeError) as error:
            raise ValueError(f"encoding: {self.encoding} is not a text encoding of Python; correct it") from error
        if self.kind == "text" and not same:
            raise ValueError(
                f"encoding: {self.encoding} has no one-byte line breaks, which kind text needs; convert the files"
            )


class VocabularyConfig(Settings):
    """The settings that say which vocabulary to use, or how to train one."""

    path: str | None = None
    """Path or URL of vocab.txt or tokenizer.json, or of a folder with one (tokenizer.json first). null: train a
    vocabulary from the sources."""
    train: bool = False
    """Train a vocabulary into `path` if that file does not exist yet."""
    algorithm: Literal["wordpiece", "bpe", "byte_level_bpe"] = "wordpiece"
    """Training: kind of tokenizer."""
    criterion: Literal["likelihood", "frequency"] = "likelihood"
    """Training of wordpiece: merge the pair of pieces s, t with the largest p(st)/(p(s)p(t)) (likelihood), or the most
    frequent pair (frequency)."""
    size: Annotated[int, Field(ge=110)] = 30_522
    """Training: number of entries, special and unused ones included."""
    min_pair_count: Positive | None = None
    """Training: pairs that occur less often are never merged. null: 2 for frequency; for likelihood, the bound starts
    at the count of the most frequent pair and falls by a fifth whenever no pair reaches it, down to 2."""
    lowercase: bool = True
    """Lower-case text (uncased vocabulary)."""
    strip_accents: bool | None = None
    """Remove accents; null: same as `lowercase`. Refused for text whose marks are letters, such as Hindi or Thai."""
    hangul: Literal["syllables", "jamo"] = "syllables"
    """Training: keep Hangul syllables whole, or split them into their letters, as the published uncased vocabularies
    do; jamo needs strip_accents. If a vocabulary is given, its entries decide."""

    @model_validator(mode="after")
    def _check_path(self) -> VocabularyConfig:
        if self.train and self.path is None:
            raise ValueError("vocabulary.train: true needs vocabulary.path; set it to the file to train into")
        strips = self.lowercase if self.strip_accents is None else self.strip_accents
        if self.hangul == "jamo" and not strips:
            raise ValueError("hangul: jamo decomposes all characters, so it needs strip_accents: true; set it")
        return self


class DumpConfig(Settings):
    """A dump of the articles of one Wikipedia, which `make download` fetches."""

    language: str
    """Language code as in Wikipedia's addresses, such as en."""
    date: Annotated[str, Field(pattern=r"^\d{8}$")]
    """Date of the dump in quotation marks, such as "20261101"."""
    folder: str
    """Folder for the files of the dump, from which a source reads them."""


class DownloadConfig(Settings):
    """The settings that say what `make download` (`python -m pipeline.download config FILE`) fetches, and which files
    you must get yourself. Builds ignore these settings."""

    wikipedia: tuple[DumpConfig, ...] = ()
    """Dumps to fetch."""
    bring: dict[str, str] = Field(default_factory=dict)
    """By the name of a source: how to get its files. This is shown if they are missing."""
    mirror: str = "https://dumps.wikimedia.org"
    """Address of a server with the layout of dumps.wikimedia.org; the option --mirror overrides it."""

    @model_validator(mode="after")
    def _check_mirror(self) -> DownloadConfig:
        if not is_web_address(self.mirror):
            raise ValueError(f"mirror={self.mirror}: give an address that begins with https:// or http://")
        return self


def is_web_address(address: str) -> bool:
    """Whether `address` begins with https:// or http:// and names a host."""
    try:
        parts = urlsplit(address)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False


class PipelineConfig(Settings):
    """All settings of a build (`pipeline/run.py`)."""

    sources: tuple[SourceConfig, ...]
    """Where the text comes from."""
    vocabulary: VocabularyConfig = VocabularyConfig()
    """Which vocabulary to use, or how to train one."""
    wikitext: WikitextConfig = WikitextConfig()
    """What becomes of the parts of Wikipedia articles that are not prose; a source may have its own."""
    cleaning: CleaningConfig = CleaningConfig()
    """Which documents are left out."""
    hold_out: tuple[str, ...] = ()
    """Files, folders, globs or URLs of texts to keep out of the data set, such as evaluation sets (text, JSON, tables,
    Parquet, archives). A document that shares 13 words in a row with one of them is left out, and counted by file."""
    output: str
    """Folder of the data set, or its s3:// or gs:// URL; must be absent, empty, or an unfinished or finished build
    with the same settings."""
    mode: Mode = "strict"
    """strict: the published algorithm with its known faults fixed. reference: the same tokens as the published code."""
    max_seq_length: Annotated[int, Field(ge=8, le=65_535)] = 512
    """Longest row in tokens, special tokens included."""
    max_predictions: Positive | None = None
    """Largest number of masked positions in a row; null: masked_probability x max_seq_length, rounded up."""
    masking: Masking = "whole_word"
    """What is masked together: a whole word, a single token, or a span of words."""
    dictionary_words: tuple[str, ...] = ()
    """Languages whose words are found in ICU's dictionaries, because they are written without spaces: th, km, my, lo,
    zh, ja or yue. Decides what is masked together, and what training of a vocabulary counts as a word; the ids of a
    given vocabulary stay the same. Needs the extra `words`: pip install 'cloze[words]'."""
    replacement_draw: Literal["word", "piece"] | None = None
    """Whether [MASK], keep or replace (80/10/10) is drawn once for each word (or span), or for each piece. null: word
    in strict mode, piece in reference mode."""
    masked_probability: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.15
    """Share of tokens to predict."""
    masks_per_pair: Annotated[int, Field(ge=1, le=255)] = 1
    """K, the number of mask sets (choices of masked positions) stored with each pair. Epoch e of training uses set e
    mod K."""
    passes: Annotated[int, Field(ge=1, le=65_535)] = 1
    """Passes over the corpus, each with different pairs."""
    short_sequence_probability: Fraction = 0.1
    """Share of pairs that aim at a shorter length than max_seq_length."""
    next_sentence: NextSentence = "random_document"
    """How half of the pairs become negatives. random_document: the second segment is from another document of the same
    source (mode: reference: of any source). sentence_order: the two segments are swapped. none: there is no second
    segment. With random_document, the only document of its source in a shard gives rows without a label."""
    not_next_bounds: tuple[Share, Share] | None = None
    """Lowest and highest allowed share of negatives (pairs whose second segment does not follow the first). Outside, a
    build of 400 or more pairs fails; warnings begin halfway between 0.5 and a bound. null: 0.4 to 0.6, in reference
    mode 0.4 to 0.75. [0, 1] never fails."""
    validation_fraction: Fraction = 0.01
    """Share of documents held out, chosen by the hash of their text; 0 for none. The chapters of a book are held out
    together, as are neighbouring documents of rows_per_document (about two million characters)."""
    shards: Positive | Literal["auto"] = "auto"
    """Number of training shards; auto: one for about 64 MB of text."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 12_345
    """Seed of all random draws."""
    workers: Positive | None = None
    """Number of workers; null: one for each core, or with engine ray as many as fit on the present nodes. Never changes
    the data."""
    engine: EngineName = "local"
    """Where the workers run, also as --engine NAME. local: processes on this machine; dask: a Dask cluster; ray: actors
    on a Ray cluster. Beam options after -- may name another runner. Never changes the data."""
    dask: DaskConfig = DaskConfig()
    """Settings of engine: dask."""
    ray: RayConfig = RayConfig()
    """Settings of engine: ray."""
    download: DownloadConfig = DownloadConfig()
    """What to fetch before a build, and from where."""

    @property
    def predictions(self) -> int:
        """The largest number of masked positions that a row may have. This is max_predictions or, if max_predictions is
        null, masked_probability x max_seq_length rounded up."""
        if self.max_predictions is not None:
            return self.max_predictions
        return max(1, -int(-self.masked_probability * self.max_seq_length // 1))

    @property
    def source_names(self) -> tuple[str, ...]:
        """The distinct names of the sources, ordered by falling weight, then by name.

        The source of a document is stored as an index into this tuple. A text in two sources gets the lower index.
        """
        weights = {source.display_name: source.weight for source in self.sources}
        return tuple(sorted(weights, key=lambda name: (-weights[name], name)))

    @property
    def source_weights(self) -> tuple[float, ...]:
        """The weights of the sources, in the order of source_names."""
        weights = {source.display_name: source.weight for source in self.sources}
        return tuple(weights[name] for name in self.source_names)

    def has_dictionary(self, language: str) -> bool:
        """Whether words of text in this language are found with a dictionary (see `dictionary_words`), so that the
        tokens of a word can be masked together."""
        return language in self.dictionary_words or language.partition("-")[0] in self.dictionary_words

    @property
    def has_groups(self) -> bool:
        """Whether some documents are parts of a longer text (a chapter of a book, or some rows of a file). The parts of
        a text are held out together."""
        return any(source.unit == "chapter" or source.rows_per_document is not None for source in self.sources)

    def _check_weights(self) -> None:
        weights: dict[str, float] = {}
        languages: dict[str, str] = {}
        for source in self.sources:
            name = source.display_name
            if languages.setdefault(name, source.language) != source.language:
                raise ValueError(
                    f"two sources are called {name} but have languages {languages[name]} and {source.language}; give "
                    "one of them a name: wrong next sentences come from the same source"
                )
            if weights.setdefault(name, source.weight) != source.weight:
                raise ValueError(
                    f"two sources are called {name} but have weights {weights[name]:g} and {source.weight:g}; give one "
                    "of them a name"
                )
            if self.mode == "reference" and source.weight != 1.0:
                raise ValueError(
                    f"mode: reference reads each document `passes` times and cannot use weight={source.weight:g}; "
                    "remove it"
                )
            if source.weight * self.passes > 65_534:
                raise ValueError(f"weight={source.weight:g} times passes={self.passes} exceeds 65,534; lower one")

    @model_validator(mode="after")
    def _check_together(self) -> PipelineConfig:
        if not self.sources:
            raise ValueError("sources is empty; list at least one source")
        if not all(self.hold_out):
            raise ValueError("hold_out names an empty path; give a file, a folder or a glob")
        sources = tuple(source.with_wikitext(self.wikitext) for source in self.sources)
        object.__setattr__(self, "sources", sources)  # because a reader gets one source, not the config
        self._check_weights()
        check_dictionary_words(self.dictionary_words, spoken=[source.language for source in self.sources])
        for name in self.download.bring:
            if name not in self.source_names:
                raise ValueError(
                    f"download.bring.{name}: no source is called {name} (there are {', '.join(self.source_names)}); "
                    "correct it"
                )
        if self.not_next_bounds is not None and self.not_next_bounds[0] > self.not_next_bounds[1]:
            raise ValueError(f"not_next_bounds={list(self.not_next_bounds)}: the first must not exceed the second")
        if self.predictions > self.max_seq_length - 2:
            raise ValueError(
                f"max_predictions={self.predictions} exceeds what max_seq_length={self.max_seq_length} can hold "
                f"({self.max_seq_length - 2} tokens beside [CLS] and [SEP]); lower it"
            )
        if self.mode == "reference" and self.next_sentence != "random_document":
            raise ValueError(f"mode: reference needs next_sentence: random_document, not {self.next_sentence}; set it")
        if self.mode == "reference" and self.replacement_draw == "word":
            raise ValueError("mode: reference draws 80/10/10 for each piece; remove replacement_draw: word")
        if self.mode == "reference" and self.masks_per_pair != 1:
            raise ValueError(
                f"mode: reference has one mask set per pair, not masks_per_pair={self.masks_per_pair}; raise passes"
            )
        if self.mode == "reference" and self.dictionary_words:
            raise ValueError("mode: reference takes words from the tokenizer, as published; remove dictionary_words")
        if self.mode == "reference" and self.masking == "span":
            raise ValueError("mode: reference needs masking: whole_word or token, not span; set it")
        return self

    def data_tree(self) -> dict[str, object]:
        """Return the settings that shape the data, as nested dicts keyed by field name.

        These are all settings except `output`, `engine`, `dask`, `ray`, `workers`, `download`, `not_next_bounds`,
        `keep_rejects` and the paths of inputs (`path`, `clean_documents`, `hold_out` and `vocabulary.path`).
        """
        tree = to_tree(self)
        del tree["output"], tree["workers"], tree["download"], tree["engine"], tree["dask"], tree["ray"]
        del tree["hold_out"], tree["not_next_bounds"], tree["cleaning"]["keep_rejects"], tree["vocabulary"]["path"]
        for source in tree["sources"]:
            del source["path"], source["clean_documents"]
        tree["sources"].sort(key=lambda source: sorted(map(str, source.items())))
        return tree
