"""Renderers of common inline templates, by name: what each makes of its arguments. Pure.

A renderer returns text, "" for nothing, or None where its arguments are not understood (the sentence is then dropped).
Units are spelled as given, not converted: {{convert|1300|mi|km}} reads "1,300 mi".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from pipeline.wikitext_tags import BREAK, lower_digits, raise_digits


class Arguments(NamedTuple):
    """Arguments of one template: positional, named (case-folded names), and the language of the wiki."""

    positional: list[str]
    named: dict[str, str]
    language: str

    def at(self, position: int) -> str:
        """The positional argument counted from 1; "" where it is absent."""
        return self.positional[position - 1] if len(self.positional) >= position else ""

    def filled(self) -> list[str]:
        """The positional arguments that are not empty."""
        return [value for value in self.positional if value]


Renderer: TypeAlias = Callable[[Arguments], str | None]
RENDERERS: dict[str, Renderer] = {}


def _register(names: str, renderer: Renderer) -> None:
    for name in names.split("|"):
        RENDERERS[" ".join(name.split())] = renderer


def _argument(position: int) -> Renderer:
    return lambda arguments: arguments.at(position) or None


def _last(arguments: Arguments) -> str | None:
    filled = arguments.filled()
    return filled[-1] if filled else None


def _constant(text: str) -> Renderer:
    return lambda arguments: text


def _joined(separator: str) -> Renderer:
    return lambda arguments: separator.join(arguments.filled()) or None


def _around(before: str, after: str = "") -> Renderer:
    return lambda arguments: before + arguments.at(1) + after if arguments.at(1) else None


# ---- numbers, units, money ----

_NUMBER = re.compile(r"([-+\u2212]?)(\d+)(\.\d+)?")
_GROUPS = {
    "en": (",", "."), "ja": (",", "."), "zh": (",", "."), "ko": (",", "."), "simple": (",", "."), "he": (",", "."),
    "de": (".", ","), "es": ("\u00a0", ","), "it": (".", ","), "nl": (".", ","), "pt": (".", ","), "da": (".", ","),
    "id": (".", ","), "tr": (".", ","), "el": (".", ","), "ca": (".", ","), "ro": (".", ","), "hr": (".", ","),
    "fr": ("\u202f", ","), "ru": ("\u00a0", ","), "uk": ("\u00a0", ","), "pl": ("\u00a0", ","), "cs": ("\u00a0", ","),
    "sv": ("\u00a0", ","), "fi": ("\u00a0", ","), "no": ("\u00a0", ","), "hu": ("\u00a0", ","), "bg": ("\u00a0", ","),
}


def format_number(text: str, *, language: str) -> str:
    """A plain number with the separators of the language; anything else unchanged."""
    found = _NUMBER.fullmatch(text.replace(",", "") if language in ("en", "simple") else text)
    if found is None:
        return text
    group, point = _GROUPS.get(language, (",", "."))
    sign, whole, fraction = found.groups()
    if len(whole) > 4 or (len(whole) == 4 and group != "\u00a0"):
        whole = f"{int(whole):,}".replace(",", group)
    return sign + whole + (point + fraction[1:] if fraction else "")


_RANGE_WORDS = {
    "-": "\u2013", "\u2013": "\u2013", "to": " to ", "and": " and ", "or": " or ", "x": " by ", "by": " by ",
    "xx": " \u00d7 ", "*": " \u00d7 ", "\u00d7": " \u00d7 ", "+/-": " \u00b1 ", "\u00b1": " \u00b1 ", "to(-)": " to ",
    "and(-)": " and ", ",": ", ", "+": " + ", "/": "/", "to about": " to about ", "through": " through ",
}
_UNIT_SIGNS = {
    "C": "\u00b0C", "F": "\u00b0F", "K": "K", "sqmi": "sq mi", "sqkm": "km\u00b2", "km2": "km\u00b2", "m2": "m\u00b2",
    "m3": "m\u00b3", "cm2": "cm\u00b2", "cm3": "cm\u00b3", "mm2": "mm\u00b2", "km3": "km\u00b3", "sqft": "sq ft",
    "cuft": "cu ft", "cuin": "cu in", "sqin": "sq in", "kph": "km/h", "km/h": "km/h", "nmi": "nmi", "ft": "ft", "in": "in",
    "foot": "ft", "mile": "mi", "inch": "in", "cuyd": "cu yd", "oz": "oz", "usgal": "US gal", "impgal": "imp gal",
    "lb": "lb", "lbs": "lb", "mph": "mph", "PD/sqmi": "/sq mi", "PD/km2": "/km\u00b2", "ftin": "ft", "deg": "\u00b0",
}


def _convert(arguments: Arguments) -> str | None:
    values = arguments.positional
    text, position = "", 0
    while position + 1 < len(values):
        text += format_number(values[position], language=arguments.language)
        joint = values[position + 1]
        if joint not in _RANGE_WORDS:
            unit = _UNIT_SIGNS.get(joint, joint)
            if unit == "ft" and position + 3 < len(values) and values[position + 3] in ("in", "inch"):
                return f"{text} ft {values[position + 2]} in"
            hyphen = arguments.named.get("adj") == "on" and unit.isalpha()
            return f"{text}{'-' if hyphen else ' '}{unit}" if text.strip() and unit else None
        text += _RANGE_WORDS[joint]
        position += 2
    return None


def _value(arguments: Arguments) -> str | None:
    number = arguments.at(1)
    if not number:
        return None
    text = format_number(number, language=arguments.language)
    if arguments.at(2):
        text += f" \u00b1 {arguments.at(2)}"
    if arguments.named.get("e"):
        text += "\u00d710" + raise_digits(arguments.named["e"])
    unit = arguments.named.get("u") or arguments.named.get("ul") or arguments.named.get("unit\u00e0") or ""
    return f"{text} {unit}".rstrip()


def _unit_fr(arguments: Arguments) -> str | None:
    filled = arguments.filled()
    if not filled:
        return None
    unit = "".join(raise_digits(part) if part.lstrip("-").isdigit() else part for part in filled[1:])
    return f"{format_number(filled[0], language=arguments.language)} {unit}".rstrip()


def _fraction(arguments: Arguments) -> str | None:
    filled = arguments.filled()
    if len(filled) == 1:
        return f"1/{filled[0]}"
    if len(filled) == 2:
        return f"{filled[0]}/{filled[1]}"
    return f"{filled[0]} {filled[1]}/{filled[2]}" if len(filled) == 3 else None


def _money(sign: str) -> Renderer:
    return lambda arguments: sign + format_number(arguments.at(1), language=arguments.language)


# ---- dates ----

_MONTHS = (
    "January February March April May June July August September October November December".split()
)


def _month(text: str) -> str | None:
    if text.isdecimal():
        return _MONTHS[int(text) - 1] if 1 <= int(text) <= 12 else None
    return text


def _date_text(year: str, month: str, day: str, *, day_first: bool) -> str | None:
    if not year:
        return None
    name = _month(month) if month else ""
    if name is None:
        return None
    if not name:
        return year
    if not day:
        return f"{name} {year}"
    day = day.lstrip("0") or day
    return f"{day} {name} {year}" if day_first else f"{name} {day}, {year}"


def _english_date(arguments: Arguments) -> str | None:
    if arguments.language not in ("en", "simple"):
        return None
    day_first = arguments.named.get("df", "").casefold() in ("y", "yes", "true", "1")
    return _date_text(arguments.at(1), arguments.at(2), arguments.at(3), day_first=day_first)


def _as_of(arguments: Arguments) -> str | None:
    day_first = arguments.named.get("df", "").casefold() != "us"
    date = _date_text(arguments.at(1), arguments.at(2), arguments.at(3), day_first=day_first)
    if date is None:
        return None
    alternative = arguments.named.get("alt")
    word = "since" if arguments.named.get("since") else "as of"
    return alternative or f"{word if arguments.named.get('lc') else word.capitalize()} {date}"


def _words_of_date(arguments: Arguments) -> str | None:
    """French and related forms, {{date|1|janvier|1900|...}}: day, month in words, year."""
    filled = arguments.filled()
    if len(filled) == 1:
        return filled[0]
    if len(filled) >= 3 and not filled[1].isdecimal():
        return " ".join(filled[:3])
    return " ".join(filled) if len(filled) == 2 else None


def _age(arguments: Arguments) -> str | None:
    values = arguments.positional[:6]
    if len(values) < 6 or not all(value.isdecimal() for value in values):
        return None  # an age today is not in the dump
    first, last = list(map(int, values[:3])), list(map(int, values[3:]))
    return str(last[0] - first[0] - (last[1:] < first[1:]))


# ---- names of things ----


def _interlanguage(arguments: Arguments) -> str | None:
    return arguments.named.get("lt") or arguments.named.get("display") or arguments.at(1) or None


def _linked_label(position: int) -> Renderer:
    """A link to another wiki with its label at `position`, the target before it."""
    return lambda arguments: arguments.at(position) or arguments.at(1) or None


def _language_text(arguments: Arguments) -> str | None:
    return arguments.at(2) or arguments.named.get("text") or arguments.named.get("texte") or None


def _other_language(arguments: Arguments) -> str | None:
    return arguments.at(1) or arguments.named.get("text") or arguments.named.get("script") or None


def _japanese(arguments: Arguments) -> str | None:
    english, *others = [*arguments.positional[:3], ""]
    inside = ", ".join(value for value in others if value)
    if not english:
        return inside or None
    return f"{english} ({inside})" if inside else english


def _chinese(arguments: Arguments) -> str | None:
    shown = [value for key, value in arguments.named.items() if value and key not in ("labels", "links", "first", "scase")]
    return ", ".join(dict.fromkeys(shown + arguments.filled())) or None


def _ship(prefix: str) -> Renderer:
    def render(arguments: Arguments) -> str | None:
        first, rest = (prefix, arguments.positional) if prefix else (arguments.at(1), arguments.positional[1:])
        name, hull, form = [*rest, "", "", ""][:3]
        if not name:
            return None
        full = f"{first} {name}".strip()
        if form in ("2", "6"):
            return full if form == "6" else f"{full}" if not hull else full
        if form == "3":
            return hull or None
        if form == "5":
            return name
        return f"{full} ({hull})" if hull and form != "4" else full

    return render


def _ship_class(arguments: Arguments) -> str | None:
    name, kind = arguments.at(1), arguments.at(2)
    return (f"{name}-class {kind}" if kind else f"{name} class") if name else None


def _quotation(arguments: Arguments) -> str | None:
    named = arguments.named
    text = arguments.at(1) or named.get("text") or named.get("quote") or named.get("texte") or named.get("citat") or ""
    return f"{BREAK}{text}{BREAK}" if text else BREAK


def _reign(arguments: Arguments) -> str | None:
    years = "\u2013".join(arguments.filled()[:2])
    return f"r. {years}" if years else None


def _circa(arguments: Arguments) -> str | None:
    years = " \u2013 c. ".join(arguments.filled()[:2])
    return f"c. {years}" if years else "c."


def _sic(arguments: Arguments) -> str | None:
    return "".join(arguments.filled()[:2])


def _chemical(arguments: Arguments) -> str | None:
    return "".join(lower_digits(value) if value.isdecimal() else value for value in arguments.positional) or None


def _power_of_ten(arguments: Arguments) -> str | None:
    return "\u00d710" + raise_digits(arguments.at(1).replace("-", "\u2212")) if arguments.at(1) else None


def _century(after: str, before: str = "") -> Renderer:
    return lambda arguments: f"{before}{arguments.at(1)}{after}" if arguments.at(1) else None


_register(
    "nowrap|nobr|nobreak|no break|no wrap|j|small|smaller|big|big2|bigger|larger|large|huge|resize|em|strong|b|i|u|s|bold|italic"
    "|abbr|abbreviation|abbrv|visible anchor|vanchor|visanc|vis anch|notatypo|not a typo|typo|proper name|as written|noitalic"
    "|nobold|normal|var|mono|code|codes|tt|kbd|key|keypress|samp|smallcaps|small caps|sc|smallcaps all|allcaps|caps|smcaps"
    "|nihongo2|gloss|angbr|linktext|no selflink|bigmath|math|mvar|mathit|unicode|polytonic|poly|grc|script|hebrew|script/hebrew"
    "|script/arabic|script/greek|rtl-lang|rtl-para|music|nastaliq|phonetic|citation needed span|cn-span|fact span|highlight|green"
    "|red|blue|gray|grey|fontcolor|strike|strikethrough|del|ins|underline|uline|overline|pad|align|center|centre|right|left|nobreak2"
    "|flag|flagcountry|flagu|flag+link|flaglist|flagathlete|noflag|country|land|pays|bandiera|abbr2|tooltip1|rh|ruby-text|fr-ruby"
    "|r\u00e9f\u00e9rence n\u00e9cessaire|r\u00e9f\u00e9rence souhait\u00e9e|pas clair|formatnum|num|nombre|nts|number table sorting|nbr"
    "|gtranslit|transl-x|word|term|defn|phrase|qq|char|unichar-x|avoid wrap|unwrap|nowrapp|no-wrap|wikilink|bww|chem2|surv|wbr1"
    "|\ubcf8\ubb38|\ud070\uae00\uc528|\uc791\uc740\uae00\uc528|\ud55c\uc790|\ub8e8\ube441|\u8981\u51fa\u5178\u7bc4\u56f2|\u611b\u79f0",
    _argument(1),
)
_register("tooltip|h:title-x|abbrlink", _argument(1))
_register("lang|langue|lingua|idioma|lang2|langx|lang-x|sprache|spr\u00e5k|taal|wikt-lang|wt-lang|\u044f\u0437\u044b\u043a", _language_text)
_register("lang-xx|langnf|llang-x|bra|bo|ancient greek|rtl", _other_language)
_register("llang|lang with name|transl|transliteration|translit|tlit|xlit|script2|rtlang|ruby|\ub8e8\ube44", _argument(2))
RENDERERS["transl"] = RENDERERS["transliteration"] = RENDERERS["translit"] = RENDERERS["tlit"] = _last
_register("nihongo|nihongo foot|nihongo-s|nihongo krt|nihongo3|japanese|korean name", _japanese)
_register("zh|chinese-inline|zhi|zh-hanzi|zh-full|zh-all|cjkv|lang-zh|linktext-zh", _chinese)
_register("convert|cvt|conv|convert-x|convertcompound", _convert)
_register("val|m|numero", _value)
_register("unit\u00e9|unit\u00e9/2|unidad|nb|unite|nombre-unit\u00e9", _unit_fr)
_register("frac|fraction|sfrac|sfraction|frac2", _fraction)
_register("nts|num|nombre|nbr|formatnum|number", lambda a: format_number(a.at(1), language=a.language) or None)
_register("gaps", _joined(""))
_register("us$|usd|us dollar", _money("US$"))
_register("$", _money("$"))
_register("\u00a3|gbp|pound sterling|\u00a3sd", _money("\u00a3"))
_register("\u20ac|eur|euro", _money("\u20ac"))
_register("\u00a5|jpy|cny|yen|rmb", _money("\u00a5"))
_register("inr|indian rupee|inrconvert|\u20b9", _money("\u20b9"))
_register("a$|aud", _money("A$"))
_register("c$|cad|can$", _money("CA$"))
_register("birth date|birth date and age|bda|dob|birth-date|birth-date and age|birth year and age|start date|start-date"
          "|start date and age|end date|end-date|film date|release date|launch date|dda|death-date|death date"
          "|death date and age|death-date and age|death year and age|birth_date|sort date|dts", _english_date)
_register("as of|asof|as at|as-of", _as_of)
_register("date|date-|jma|date sport|fecha|data|datum|date de naissance|date de d\u00e9c\u00e8s|date de naissance-|datar", _words_of_date)
_register("age|age in years|aged|oud|edad|\u00e2ge", _age)
_register("circa|c.|ca.|circa.|ca|approx", _circa)
_register("floruit|fl.|fl", _around("fl. "))
_register("reign|r.|ruled", _reign)
_register("born|b.|b-da", _around("born "))
_register("d.|died", _around("died "))
_register("born in|died-in", _around(""))
_register("ill|interlanguage link|illm|ill2|link-interwiki|red link|redlink|sortlink", _interlanguage)
_register("\u4eee\u30ea\u30f3\u30af|le|tsl-x|link-en|link-fr|link-de|link-ja|\ud0a4", _linked_label(1))
_register("internal link helper/en|\uacf3\uc5f0\uacb0|w|wp|wikt|wiktionary link", _linked_label(2))
_register("\u043d\u043f|\u043d\u043f3|\u043d\u043f5|\u043d\u0435 \u043f\u0435\u0440\u0435\u0432\u0435\u0434\u0435\u043d\u043e"
          "|\u043d\u0435 \u043f\u0435\u0440\u0435\u043a\u043b\u0430\u0434\u0435\u043d\u043e|iw", _linked_label(2))
_register("tsl", lambda a: a.at(3) or a.at(2) or None)
_register("lien|lien-", lambda a: a.named.get("texte") or a.at(1) or a.named.get("fr") or a.named.get("trad") or None)
_register("quote|blockquote|cquote|quotation|bquote|centered pull quote|rquote|quote box|pull quote|citation bloc|cita|zitat"
          "|citazione|citaat|cytat|\u0446\u0438\u0442\u0430\u0442\u0430|\ub530\uc634\ud45c|\uc778\uc6a9\ubb38|quotebox|poem quote|verse translation"
          "|poemquote|poem|columns-list|div col-x|multiple columns", _quotation)
_register("\u00ab|\u00ab-|\u00bb|guillemets|cita-|quote-inline", _argument(1))
_register("citation", lambda a: a.at(1) if a.language == "fr" else "")
_register("\"|quote1", _around("\"", "\""))
_register("'|apostrophe|\u2019", _constant("\u2019"))
_register("'s", _constant("\u2019s"))
_register("-'|'-|\"'|'\"|' \"|\" '", _constant("'"))
_register("nbsp|space|spaces|sp|thinsp|thin space|hair space|hairsp|nnbsp|px1|px2|pad|ensp|emsp|figure space|nb5|indent|0|nbs|--x",
          lambda a: "\u00a0".join(a.filled()) or " ")
_register("ndash|en dash|\u2013|endash|nsndns", _constant("\u2013"))
_register("snd|spaced ndash|spnd|sndash|spaced en dash|spndash|dash|ndash-s|space ndash|nndash", _constant(" \u2013 "))
_register("mdash|em dash|\u2014|---|emdash|double dash", _constant("\u2014"))
_register("smd|spaced mdash", _constant(" \u2014 "))
_register("\u00b7|\u2022|dot|middot|bull|bullet|bold middot|\u2219|\u2022w|\u00b7w|dotsep|dot separator", _constant(" \u00b7 "))
_register("*", _constant("*"))
_register("!(", _constant("["))
_register(")!", _constant("]"))
_register(",", _constant(","))
_register("...|ellipsis|\u2026", _constant("\u2026"))
_register("pi|\u03c0", _constant("\u03c0"))
_register("minus|\u2212", _constant("\u2212"))
_register("times|\u00d7", _constant("\u00d7"))
_register("number sign|hash|no.|num sign|numero sign|abbr no|\u2116", _constant("No."))
_register("okina|\u02bbokina", _constant("\u02bb"))
_register("ayin|hamza|asper", _constant("\u02bf"))
_register("sharp|music sharp", _constant("\u266f"))
_register("flat|music flat", _constant("\u266d"))
_register("tick|aye|yes check", _constant(""))
_register("sup|superscript|exp", lambda a: raise_digits(a.at(1)) or None)
_register("sub|subscript", lambda a: lower_digits(a.at(1)) or None)
_register("su", lambda a: (raise_digits(a.named.get("p", "")) + lower_digits(a.named.get("b", ""))) or None)
_register("e|x10^|\u00d710^", _power_of_ten)
_register("sqrt|radic", _around("\u221a"))
_register("chem|chemical formula", _chemical)
_register("uss", _ship("USS"))
_register("hms", _ship("HMS"))
_register("hmas", _ship("HMAS"))
_register("hmcs", _ship("HMCS"))
_register("usns", _ship("USNS"))
_register("uscgc", _ship("USCGC"))
_register("ss", _ship("SS"))
_register("rms", _ship("RMS"))
_register("ms", _ship("MS"))
_register("mv", _ship("MV"))
_register("sms", _ship("SMS"))
_register("gts", _ship("GTS"))
_register("ins", _ship("INS"))
_register("ship", _ship(""))
_register("sclass|sclass-|sclass2|sclass2-|sclass3", _ship_class)
_register("sic|sic-inline", _sic)
_register("hlist|cslist|csv|comma separated entries|flatlist|plainlist|ubl|unbulleted list|ublist|ulist|bulleted list", _joined(", "))
_register("si\u00e8cle|s|s2", _century("e si\u00e8cle"))
_register("s-|-s", _century("e si\u00e8cle"))
_register("siglo", _century("", "siglo "))
_register("segle", _century("", "segle "))
_register("m s.l.m.", _constant(" m s.l.m."))
_register("tutto attaccato|maiuscoletto|vol-ru|vol-pl|vol-de|vol-la|vol-lv|vol-lt|vol-be|vol-en", _argument(1))
_register("co2", _constant("CO\u2082"))
_register("h2o", _constant("H\u2082O"))
_register("mdashb", _constant("\u2014"))
_register("1er", _constant("1er"))
_register("1re", _constant("1re"))
_register("ier|er", _constant("er"))
_register("e-|me|eme", _constant("e"))
_register("n\u00b0|n\u00ba|num\u00e9ro", _constant("n\u00b0 "))
_register("av jc|av. j.-c.|-jc", _constant("av. J.-C."))
_register("ap jc|apr. j.-c.", _constant("apr. J.-C."))
_register("bc|bce", _constant("BC"))
_register("ad|anno domini", _constant("AD"))
_register("\u0434\u043e \u043d. \u044d.|\u0434\u043e \u043d.\u044d.", _constant("\u0434\u043e \u043d. \u044d."))
_register("\u043d. \u044d.|\u043d.\u044d.", _constant("\u043d. \u044d."))
