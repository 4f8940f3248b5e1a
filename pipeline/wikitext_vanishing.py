"""Templates that leave no gap in a sentence: footnotes, marks of doubt, coordinates, pronunciation, notices, icons. Pure."""

from __future__ import annotations

import re

_NAMES = frozenset(
    name.strip()
    for name in """
    cn|fact|facts|citation needed|citation-needed|cite needed|citequote|cref|cref2|quote without source|source needed
    |sfn|sfnp|sfnm|sfnref|harv|harvp|harvtxt|harvcol|harvcoltxt|harvs|harvb|harvnb|efn|efn-ua|efn-lr|efn-la|efn-ur|refn
    |r|rp|ref|ref label|ref2|note|note label|note2|ent|fn|fnb|dn|mref|hanchor|ref num|ref harv|ref harvard|sup ref|#tag
    |clarify|clarify me|clarification needed|who|who?|whom|whom?|when|when?|which|which?|where|where?|what|how|why|why?
    |by whom|by whom?|according to whom|like whom|attribution needed|dubious|disputed-inline|disputed inline|vague|verify
    |verify source|verify credibility|verification needed|verification|failed verification|not in citation given
    |unreliable source?|unreliable source|better source|better source needed|primary source inline|self-published inline
    |page needed|pages needed|page number needed|volume needed|nonspecific|non sequitur|opinion|or|original research inline
    |synthesis inline|undue weight inline|undue-inline|lopsided|peacock term|weasel-inline|weasel inline|weasel word|pov
    |pov statement|pov-statement|speculation inline|speculation|importance inline|examples|example needed|specify|elucidate
    |jargon inline|jargon-inline|technical inline|tone inline|expand inline|expand acronym|update after|update inline
    |update-inline|outdated inline|obsolete source|needs update inline|out of date inline|dead link|deadlink|broken link
    |cbignore|bare url inline|full|full citation needed|citation style|contradict inline|contradict-inline|contradiction-inline
    |disambiguation needed|discuss|copyedit inline|ambiguous|awkward|chronology citation needed|circular reference
    |conflicted-inline|conformation|date missing|definition|definition needed|double check|gcb|inconsistent|neologism inline
    |promotion-inline|qn|quantify|relevance inline|relevance-inline|request quotation|scope|season needed|season number needed
    |third-party-inline|third-party source needed|time fact|timefact|tooltip needed|unbalanced opinion|year needed|year missing
    |coord|coords|coor|coor d|coor dm|coor dms|coor title d|coor title dm|coor title dms|coor at dm|coor at dms|coordinate
    |koordinate|koordinaten|koordynaty|coordenadas|coordinate title|geolinks-us-cityscale|mapit-us-cityscale|osm|anchor
    |anchors|anker|\u044f\u043a\u043e\u0440\u044c|shortcut|sc2|sectstub|ipa|ipac-en|ipac-pl|ipac-de|ipa-all|pron|pron-en
    |pron2|respell|usdict|pronunciation needed|audio|audio-ipa|audio-nohelp|listen|h:title|api|prononciation|afi|ipa2
    |lautschrift|ipa-text|audioru|audiohelp|hoorbyte|dabcom|flagicon|flagicon image|flag icon|flagdeco|fahne|bandeira
    |bandera icona|icon|ico|image|color box|legend|legend-line|colorbox|increase|decrease|steady|profit|loss|gain|nochange
    |rising|up|down|up-arrow|dagger|double-dagger|dagger2|asterisk|ref-en|ref-de|ref-fr|ref-ru|en icon|de icon|fr icon|es icon
    |it icon|ru icon|pt icon|nl icon|pl icon|ja icon|ko icon|zh icon|sv icon|link language|language icon|en|fr|de|in lang
    |link fa|link ga|link fl|fa link|featured article|good article|commons|commonscat|commons category|commons-inline
    |commonscat-inline|commons category-inline|wikiquote|wiktionary|wikisource|wikibooks|wikinews|wikiversity|wikispecies
    |wikivoyage|sister project links|sisterlinks|sister project|portal|portal-inline|portal bar|portalbar|subject bar|spoken
    |spoken wikipedia|authority control|normdaten|autorit\u00e9|persondata|personendaten|dmoz|imdb name|imdb title|official
    |official website|reflist|references|refbegin|refend|notelist|notelist-ua|notelist-lr|notes|citations|fontes|refer\u00eancias
    |listaref|referencias|fuentes|r\u00e9f\u00e9rences|\u043f\u0440\u0438\u043c\u0435\u0447\u0430\u043d\u0438\u044f|einzelnachweise
    |use dmy dates|use mdy dates|use british english|use american english|use australian english|engvarb|short description
    |about|for|for2|for-multi|other uses|otheruses|other uses2|other uses of|otheruses4|otheruses1|otherpeople|other people
    |otherpeople1|other persons|other places|otherplaces|redirect|redirect2|redirect-multi|redirect3|redirect-distinguish
    |two other uses|distinguish|distinguish2|not to be confused with|confuse|hatnote|dablink|main|main article|main articles
    |mainarticle|hauptartikel|article d\u00e9taill\u00e9|article principal|articles d\u00e9taill\u00e9s|vedi anche|v\u00e9ase tamb\u00e9n
    |ap|artigo principal|hoofdartikel|\u043e\u0441\u043d\u043e\u0432\u043d\u0430\u044f \u0441\u0442\u0430\u0442\u044c|see|see also
    |seealso|further|details|further information|furtherinfo|see details|detail|broader|category see also|cat main|pp
    |pp-protected|pp-vandalism|pp-move-indef|pp-move|pp-semi|pp-semi-indef|pp-semi-protected|protected|sprotected|clear|clr
    |-|br|clearleft|clear left|clearright|clear right|clr left|toc|tocleft|toc left|tocright|toc right|toclimit|toc limit
    |compacttoc|compact toc|horizontal toc|toc hidden|toc-right|notoc|stub|col-begin|col-2|col-3|col-4|col-5|col-break|col-end
    |col begin|col break|col end|col-start|col-1-of-2|col-2-of-2|multicol|multicol-break|multicol-end|div col|div col end
    |divcol|divcol end|div-col|div end|end div col|end|startflatlist|endflatlist|startplainlist|endplainlist|flatlist end
    |top|mid|bottom|bot|hidden begin|hidden end|collapse top|collapse bottom|cot|cob|s-start|s-end|end box|start box|shy|wbr
    |zwj|zwnj|lrm|rlm|zwsp|zws|\u200d|sic2|unreferenced section|unreferenced|refimprove|more citations needed|cleanup|npov
    |pov-section|expand section|expand-section|empty section|original research|update|merge|merge to|merge from|split
    |sort|sortkey|sort key|ntsh|nts hidden|dts hidden|hs|hid|hidden|void|null|nul|empty|!xt|peacock inline|weasel|inline
    |refnec|r\u00e9f. n\u00e9cessaire|r\u00e9f n\u00e9cessaire|refsou|source insuffisante|quand|qui|pr\u00e9cision n\u00e9cessaire
    |belege fehlen|belege|quelle|cita requerida|cr|demostrar|c\u00f3mo|citazione necessaria|senza fonte|senzafonte
    |chiarire|carece de fontes|sem-fontes|bron?|feit|f\u00f6rtydliga|k\u00e4lla beh\u00f6vs|kilde mangler|fakt|\u017ar\u00f3d\u0142o?
    |\u043d\u0435\u0442 \u0410\u0418|\u043d\u0435\u0442 \u0430\u0438|\u043a\u0442\u043e|\u043a\u043e\u0433\u0434\u0430|\u0433\u0434\u0435|\u043a\u0430\u043a\u043e\u0439
    |\u0434\u0436\u0435\u0440\u0435\u043b\u043e?|\ucd9c\ucc98|\ucd9c\ucc98 \ud544\uc694|\ub204\uac00|\uc5b8\uc81c|\uac01\uc8fc|\ud655\uc778 \ud544\uc694
    |\u8981\u51fa\u5178|\u8ab0|\u3044\u3064|\u3069\u3053|\u8981\u691c\u8a3c|\u6765\u6e90\u8acb\u6c42|\u4f86\u6e90\u8acb\u6c42|\u8ab0?|\u6709\u4f86\u6e90
    |bandera|flaggbild|flaga|vlag|drapeau|zastava|bayrak|\u0444\u043b\u0430\u0433\u0447\u0435|\u0444\u043b\u0430\u0433
    |\u067e\u0631\u0686\u0645\u06a9|\u067e\u0631\u0686\u0645 \u062a\u0635\u0648\u06cc\u0631|lingue|ling|eqm|pqm|sprogikon|vr|youtube|bibleref|bibleverse
    |\u062d\u0648\u0627\u0644\u06c1 \u062f\u0631\u06a9\u0627\u0631|\u0623\u0644\u0645\u0627\u0646\u064a\u0629|\u0625\u0646\u062c\u0644\u064a\u0632\u064a\u0629|\u0641\u0631\u0646\u0633\u064a\u0629
    """.split("|")
    if name.strip()
)
_NAMES = frozenset(" ".join(name.split()) for name in _NAMES)
_PATTERN = re.compile(
    r"(?:infobox|taxobox|navbox|cite|citation|cita |citar |citeer |citeweb|literatur|internetquelle|ouvrage|lien web|ipa-|ipac-|sfn|efn|harv|efs|wikidata|geobox|automatic taxobox|speciesbox|"
    r"chembox|drugbox|succession|sidebar|s-|pp-|portal|commons|stub|use |epi|coor |geo |bk|isbn|issn|doi|oclc|pmid|lccn|"
    r"arxiv|imdb|google|official|allmusic|discogs|gutenberg|webarchive|wayback|internet archive|ref-|refe|unref|"
    r"link[ _-](?:fa|ga)|r/).*|.*(?:-stub| stub|-geo-stub|box|list of refs|footer|sidebar|needed|-inline| inline| icon)"
)


def vanishes(name: str) -> bool:
    """Whether a template (name by fold_name) shows nothing that a sentence would miss."""
    return name in _NAMES or _PATTERN.fullmatch(name) is not None
