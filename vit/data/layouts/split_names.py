"""Recognise names of splits in folders, tables and columns: training, validation or testing."""

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal, NamedTuple

Kind = Literal["train", "validation", "test"]

# English first, then German, French, Spanish, Portuguese, Italian, Polish, Turkish, Indonesian, Russian, Chinese,
# Japanese, Korean, without accents.
_TRAIN = (
    "train", "training", "trainval", "trn", "trainings", "entrainement", "apprentissage", "entrenamiento", "treino",
    "treinamento", "addestramento", "trening", "treningowe", "egitim", "latih", "pelatihan", "обучение", "обучающая",
    "тренировка", "тренировочная", "训练", "訓練", "学習", "学習用", "訓練用", "トレーニング", "학습", "훈련",
    "labelled", "labeled",
)  # fmt: skip
_TEST = (
    "test", "testing", "tests", "tst", "eval", "evaluation", "holdout", "prueba", "pruebas", "teste", "testes",
    "testowe", "uji", "pengujian", "тест", "тестовая", "тестирование", "测试", "測試", "テスト", "テスト用", "評価",
    "评估", "테스트", "시험", "평가", "query", "gallery", "probe", "unlabelled", "unlabeled",
)  # fmt: skip
_VALIDATION = (
    "val", "valid", "validation", "validate", "validating", "dev", "devel", "development", "validierung",
    "validierungs", "validacion", "validacao", "validazione", "walidacja", "walidacyjne", "dogrulama", "validasi",
    "валидация", "валидационная", "验证", "驗證", "検証", "検証用", "검증",
)  # fmt: skip


def _without_accents(text: str) -> str:
    return unicodedata.normalize("NFC", re.sub("[\u0300-\u036f]", "", unicodedata.normalize("NFD", text)))


# Among several candidates for testing, the first in this order is used.
_ORDER = {_without_accents(word): order for order, word in enumerate((*_TRAIN, *_TEST, *_VALIDATION))}
_WEAK = ("query", "gallery", "probe", "labelled", "labeled", "unlabelled", "unlabeled")  # beside another such word
_EXACT = ("train", "test", "val", "valid", "validation")
NEUTRAL = (
    "set", "sets", "data", "dataset", "image", "images", "img", "imgs", "picture", "pictures", "photo", "photos",
    "split", "folder", "dir", "samples", "daten", "datensatz", "bilder", "集", "数据", "数据集", "資料", "图片", "图像",
    "データ", "セット", "データセット", "画像", "데이터", "셋", "데이터셋",
)  # fmt: skip
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_a-zA-Z]+")


class SplitName(NamedTuple):
    """A name recognised as that of a split; sorts by preference.

    Attributes:
        order: index of the word among those for splits.
        rank: 0 as this app writes it, 1 in another spelling or with words such as "images", 2 with other words.
        others: these other words.
    """

    order: int
    rank: int
    others: tuple[str, ...] = ()

    @property
    def kind(self) -> Kind:
        """The split."""
        if self.order < len(_TRAIN):
            return "train"
        return "test" if self.order < len(_TRAIN) + len(_TEST) else "validation"


@lru_cache(maxsize=10_000)  # called for the folder of every picture
def split_name(name: str) -> SplitName | None:
    """Parse the name of a split; None if it is not one, or names several.

    >>> split_name("Training").kind, split_name("TestImages").kind, split_name("cat"), split_name("seg_train").others
    ('train', 'test', None, ('seg',))
    """
    if name in _EXACT:
        return SplitName(_ORDER[name], 0)
    words = [_without_suffix(word.casefold()) for word in _words(name)]
    orders = {_ORDER[word] for word in words if word in _ORDER}
    if len(orders) > 1:
        orders -= {_ORDER[word] for word in _WEAK}
    if len(orders) != 1:
        return None
    others = tuple(word for word in words if word not in _ORDER and word not in NEUTRAL)
    return SplitName(orders.pop(), 2 if others else 1, others)


def split_kinds(name: str) -> list[Kind]:
    """Return the splits that a name names, in its order.

    >>> split_kinds("train_test_split"), split_kinds("is_training_image")
    (['train', 'test'], ['train'])
    """
    words = (_without_suffix(word.casefold()) for word in _words(name))
    return [SplitName(_ORDER[word], 0).kind for word in words if word in _ORDER]


def without_split(name: str) -> str:
    """Return the part of a split's name that does not name the split.

    >>> without_split("train-cat"), without_split("Guppy_2_test"), without_split("testA"), without_split("train2017")
    ('cat', 'Guppy_2', 'A', '2017')
    """
    plain, name = _without_accents(name), unicodedata.normalize("NFC", name)
    if len(plain) != len(name):  # an accent that belongs to no character
        name = plain
    words = _WORDS.finditer(plain)
    start, end = next(word.span() for word in words if _without_suffix(word[0].casefold()) in _ORDER)
    before, after = name[:start].rstrip(" ._-"), name[end:]
    return before + after if before else after.lstrip(" ._-")


def split_of(names: Iterable[str]) -> SplitName | None:
    """Return the innermost split among folder names, given from the outermost to the innermost."""
    found = [split for split in map(split_name, names) if split]
    return found[-1] if found else None


def is_generic(name: str) -> bool:
    """Whether a name only says that there are pictures.

    >>> is_generic("Images"), is_generic("no_masks")
    (True, False)
    """
    words = [word.casefold() for word in _words(name)]
    return bool(words) and all(word in NEUTRAL for word in words)


def _words(name: str) -> list[str]:
    """Split a name into words, without accents."""
    return _WORDS.findall(_without_accents(name))


def _without_suffix(word: str) -> str:
    """Return the word for a split in names such as "trainset" and "testdata"; else the word itself."""
    for suffix in NEUTRAL:
        if (stem := word.removesuffix(suffix)) in _ORDER:
            return stem
    return word
