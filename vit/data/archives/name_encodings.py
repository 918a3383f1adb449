"""Detect the encoding of names in a zip that does not state it, as old Windows programs write them.

Names are short, so general detectors, which count letters of running text, fail on them: charset-normalizer 3.5 decodes
23 of the 68 archives in tests/test_archive_names.py, none of those in GBK. Here each encoding that decodes all names is
scored by an approximate log-probability of its characters: common letters and characters cost little; rare ones,
symbols, capitals within words and changes of script within words cost much.

Alphabets are sorted roughly by the frequency of letters in running text.

Source of the ranges: JIS X 0208 (level 1 of kanji), GB 2312 (level 1 of hanzi), KS X 1001, Big5 (level 1). Frequencies
of parts of Hangul syllables are rounded from Korean text.
"""

import unicodedata
from collections.abc import Callable, Iterable
from itertools import accumulate, islice
from math import log

from vit.untrusted import spend

UTF8 = "utf-8"
TITLES = {
    "utf-8": "UTF-8",
    "cp437": "cp437 (DOS)",
    "cp850": "cp850 (DOS, Western Europe)",
    "cp1252": "cp1252 (Windows, Western Europe)",
    "cp866": "cp866 (DOS, Cyrillic)",
    "cp1251": "cp1251 (Windows, Cyrillic)",
    "cp852": "cp852 (DOS, Central Europe)",
    "cp1250": "cp1250 (Windows, Central Europe)",
    "cp857": "cp857 (DOS, Turkish)",
    "cp1254": "cp1254 (Windows, Turkish)",
    "cp737": "cp737 (DOS, Greek)",
    "cp1253": "cp1253 (Windows, Greek)",
    "cp862": "cp862 (DOS, Hebrew)",
    "cp1255": "cp1255 (Windows, Hebrew)",
    "cp720": "cp720 (DOS, Arabic)",
    "cp1256": "cp1256 (Windows, Arabic)",
    "cp874": "cp874 (Windows, Thai)",
    "cp932": "Shift-JIS (Japanese)",
    "gb18030": "GBK (simplified Chinese)",
    "big5": "Big5 (traditional Chinese)",
    "cp949": "EUC-KR (Korean)",
}

_MOST, _LONGEST = 1000, 200  # maximum number of path components to score, and bytes of each
_MOST_BYTES = 30_000  # of all of them

_NEAR = 4.0  # [nats] maximum difference to the best encoding for an alternative to be reported

# Costs, in nats.
_ASCII = 3.2  # a letter or digit
_ACCENT, _RARE_ACCENT = 4.0, 7.0
_FALL = 5.0  # from the most common letter of an alphabet to the rarest
_VOWELS_MEET, _NO_VOWEL = 1.5, 2.0  # for a letter with an accent
_NOT_FINAL = 4.0  # a final form of a letter within a word
_KANA = 4.8
_SYMBOL = 10.0
_RARE = 3.0  # in addition to that of a common character of the same script
_BEYOND = 6.0  # a character of an extension to the standard
_CAPITAL = 1.2  # at the start of a word
_CAPITAL_AGAIN = 0.5  # in a word of capitals
_CAPITAL_WITHIN = 4.0  # after a lowercase letter
_OTHER_SCRIPT = 2.5  # within a word
_SHORT_WORD = 3.0  # of one or two letters of an alphabet

_VOWELS = set("aeiouyæøı")
_FINAL = set("ςםןךףץ")  # final forms of letters
# Accented letters that are common in some language, in either case.
_WESTERN = "àâäáãåæçèéêëìíîïñòóôöõøùúûüÄÅÉÖØÜ"
_CENTRAL = "áčďéěíňóřšúůýžąćęłńśźżőűöüäßľôÁČŘŠÚŽŁŚŻŐÖÜ"
_TURKISH = "çğıöşüÇĞİÖŞÜ"
_ACCENTS = {
    **dict.fromkeys(("cp1252", "cp850", "cp437"), _WESTERN),  # ties: the first wins, as ä is more common than õ
    **dict.fromkeys(("cp852", "cp1250"), _CENTRAL),
    **dict.fromkeys(("cp857", "cp1254"), _TURKISH),
}
# Lowercase letters, most common first.
_ALPHABETS = {
    **dict.fromkeys(("cp866", "cp1251"), "оаеинтсрлвкмдпуыьязгбчйжхшюцщэфёіъїєўґ"),
    **dict.fromkeys(("cp737", "cp1253"), "αοιετσνηυρπκμλςίάόδγέχθφβήξύζώψϊϋΐΰ"),
    **dict.fromkeys(("cp862", "cp1255"), "יולהארתבשמנדכחקפעצגםטזסןץךף"),
    **dict.fromkeys(("cp720", "cp1256"), "اليمرنوتبةدسعفحقكشجطصخزغذضثءئىأظإآؤگپچژ"),
    "cp874": "านรก่อ้เงมลยวัดสีิทตปบะคหุ์แพจขืชูใไ็โผึถซณฟศษธญภฐฉฝฮ๊๋ฎฏฤฆำๆฑฒฬฌ",
}
_INITIALS = (10, 1, 9, 6, 2, 6, 5, 5, 0.5, 11, 1, 22, 8, 1, 3, 1.5, 2, 2, 7)  # [%]
_MEDIALS = (22, 5, 2, 0.1, 10, 5, 6, 1, 10, 1.5, 0.3, 1.5, 1.5, 8, 1, 0.2, 1, 1.5, 8, 1, 15)
_FINALS = (
    52, 7, 0.1, 0.1, 13, 0.1, 0.3, 0.3, 8, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 3.5, 2, 0.3, 2, 2, 9, 0.3, 0.2, 0.1, 0.3,
    0.3, 0.3,
)  # fmt: skip


def encoding_of(names: Iterable[bytes]) -> str:
    """Return the first of `encodings_of`.

    >>> encoding_of(["猫/1.jpg".encode("cp932"), "犬/1.jpg".encode("cp932")])
    'cp932'
    """
    return encodings_of(names)[0]


def encodings_of(names: Iterable[bytes]) -> list[str]:
    """Return the most likely encoding of all names of an archive together, followed by nearly as likely ones.

    Names that are valid UTF-8 are taken as UTF-8, which other encodings rarely match by chance.
    """
    foreign = [name for name in names if not name.isascii()]
    parts = dict.fromkeys(part for name in foreign for part in name.split(b"/") if not part.isascii())
    some = [part[:_LONGEST] for part in islice(parts, _MOST)]
    sizes = accumulate(map(len, some))
    some = [part for part, size in zip(some, sizes, strict=True) if size <= _MOST_BYTES]
    every, totals = b"/".join(parts), dict[str, float]()  # no encoding has "/" within a character
    for encoding, cost in _COSTS.items():
        spend()
        try:
            every.decode(encoding)
        except UnicodeDecodeError:
            continue
        if encoding == UTF8:
            return [encoding]
        totals[encoding] = sum(_cost(part.decode(encoding, "ignore"), encoding, cost) for part in some)
    if not totals:
        return ["cp437"]  # the default of the zip format
    least = min(totals.values())
    return [encoding for encoding in sorted(totals, key=lambda one: totals[one]) if totals[encoding] <= least + _NEAR]


def _cost(name: str, encoding: str, of_character: Callable[[str, bytes], float]) -> float:
    """Return minus the log-probability of a name, up to a constant."""
    total, before, word = 0.0, "", ""
    for character in f"{name} ":
        script = _script(character)
        if script:
            total += _ASCII if character.isascii() else of_character(character, character.encode(encoding))
            if before and before != script:
                total += _OTHER_SCRIPT
            if character.isupper():
                total += _CAPITAL_WITHIN if word and word[-1].islower() else _CAPITAL_AGAIN if word else _CAPITAL
            word += character
        else:
            if not character.isascii():
                total += 2 * _SYMBOL if unicodedata.category(character) == "Co" else _SYMBOL
            if word and not word.isascii() and _script(word[-1]) != "CJK":
                total += _SHORT_WORD * (len(word) < 3) + _unpronounceable(word.lower())
            word = ""
        before = script
    return total


def _script(character: str) -> str:
    """Return the script of a letter, such as LATIN, CYRILLIC or CJK; "" for any other character."""
    if character.isascii():
        return "LATIN" if character.isalpha() else ""
    if character == "ー":  # the long vowel mark of katakana
        return "CJK"
    if not character.isalpha() and unicodedata.category(character) != "Mn":  # such as Thai vowels
        return ""
    script = unicodedata.name(character, "UNKNOWN").partition(" ")[0]
    return "CJK" if script in ("HIRAGANA", "KATAKANA", "HALFWIDTH", "HANGUL") else script


def _unpronounceable(word: str) -> float:
    """Return a penalty for unpronounceable letters: è is a vowel and č is not, at the same code in two encodings."""
    total = _NOT_FINAL * sum(letter in _FINAL for letter in word[:-1])
    vowels = [unicodedata.normalize("NFD", letter)[0] in _VOWELS for letter in word]
    for i, letter in enumerate(word):
        if not letter.isascii() and _script(letter) == "LATIN":
            near = any(vowels[max(0, i - 1) : i] + vowels[i + 1 : i + 2])
            total += _VOWELS_MEET if vowels[i] and near else _NO_VOWEL if not vowels[i] and not near else 0.0
    return total


def _accented(common: str) -> Callable[[str, bytes], float]:
    def cost(character: str, _: bytes) -> float:
        if character in common:
            return _ACCENT
        return _RARE_ACCENT if _script(character) == "LATIN" else _SYMBOL

    return cost


def _ranked(letters: str) -> Callable[[str, bytes], float]:
    """Assign costs that rise evenly from the first letter to the last; any other character is a symbol."""
    count = len(letters)
    costs = {letter: log(count / _FALL) + _FALL * rank / count for rank, letter in enumerate(letters)}
    return lambda character, _: costs.get(character.lower(), _SYMBOL)


def _of_japanese(character: str, code: bytes) -> float:
    if "ぁ" <= character <= "ヺ" or character == "ー":
        return _KANA
    if len(code) == 1:  # half-width kana
        return 7.0
    # JIS X 0208 has 2,965 kanji of level 1 and 3,390 of level 2.
    if b"\x88\x9f" <= code <= b"\x98\x72":
        return log(2965)
    return log(3390) + _RARE if b"\x98\x9f" <= code <= b"\xea\xa4" else _SYMBOL + _BEYOND


def _of_chinese(_: str, code: bytes) -> float:
    # GB 2312 has 3,755 hanzi of level 1, in rows B0 to D7, and 3,008 of level 2, up to row F7.
    if len(code) != 2 or code[0] < 0xB0 or code[0] > 0xF7 or code[1] < 0xA1:
        return log(3755) + _BEYOND
    return log(3755) if code[0] <= 0xD7 else log(3008) + _RARE


def _of_traditional(_: str, code: bytes) -> float:
    if b"\xa4\x40" <= code <= b"\xc6\x7e":  # sorted by strokes, so the first are common
        return 7.4 + 2.4 * (code[0] - 0xA4) / (0xC6 - 0xA4)
    return log(7652) + _RARE if code >= b"\xc9\x40" else _SYMBOL


def _of_korean(character: str, code: bytes) -> float:
    # Unicode orders 11,172 syllables by 19 initial, 21 medial and 28 final letters, one of them empty.
    number = ord(character) - 0xAC00
    if not 0 <= number < 11172:
        return log(4888) + _RARE  # hanja of KS X 1001
    parts = (_INITIALS[number // 588], _MEDIALS[number // 28 % 21], _FINALS[number % 28])
    return -sum(log(share / 100) for share in parts) + (_BEYOND if code[0] < 0xB0 or code[1] < 0xA1 else 0)


_COSTS: dict[str, Callable[[str, bytes], float]] = {
    UTF8: lambda character, _: 0.0,
    **{encoding: _accented(common) for encoding, common in _ACCENTS.items()},
    **{encoding: _ranked(letters) for encoding, letters in _ALPHABETS.items()},
    "cp932": _of_japanese,
    "gb18030": _of_chinese,
    "big5": _of_traditional,
    "cp949": _of_korean,
}
