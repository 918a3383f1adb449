"""Names of folders, tables and columns that say what pictures are for: training, validation or testing."""

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal, NamedTuple

Kind = Literal["train", "validation", "test"]

# English first, then German, French, Spanish, Portuguese, Italian, Polish, Turkish, Indonesian, Russian, Chinese,
# Japanese, Korean; accents are taken off.
_TRAIN = (
    "train", "training", "trainval", "trn", "trainings", "entrainement", "apprentissage", "entrenamiento", "treino",
    "treinamento", "addestramento", "trening", "treningowe", "egitim", "latih", "pelatihan", "обучение", "обучающая",
    "тренировка", "тренировочная", "训练", "訓練", "学習", "学習用", "訓練用", "トレーニング", "학습", "훈련",
)  # fmt: skip
_TEST = (
    "test", "testing", "tests", "tst", "eval", "evaluation", "holdout", "prueba", "pruebas", "teste", "testes",
    "testowe", "uji", "pengujian", "тест", "тестовая", "тестирование", "测试", "測試", "テスト", "テスト用", "評価",
    "评估", "테스트", "시험", "평가",
)  # fmt: skip
_VALIDATION = (
    "val", "valid", "validation", "validate", "validating", "dev", "devel", "development", "validierung",
    "validierungs", "validacion", "validacao", "validazione", "walidacja", "walidacyjne", "dogrulama", "validasi",
    "валидация", "валидационная", "验证", "驗證", "検証", "検証用", "검증",
)  # fmt: skip


def _without_accents(text: str) -> str:
    return unicodedata.normalize("NFC", re.sub("[\u0300-\u036f]", "", unicodedata.normalize("NFD", text)))


# Whichever comes first is for testing, where there are several, or none for testing.
_ORDER = {_without_accents(word): order for order, word in enumerate((*_TRAIN, *_TEST, *_VALIDATION))}
_EXACT = ("train", "test", "val", "valid", "validation")
_NEUTRAL = (
    "set", "sets", "data", "dataset", "image", "images", "img", "imgs", "picture", "pictures", "photo", "photos",
    "split", "folder", "dir", "samples", "daten", "datensatz", "bilder", "集", "数据", "数据集", "資料", "图片", "图像",
    "データ", "セット", "データセット", "画像", "데이터", "셋", "데이터셋",
)  # fmt: skip
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_a-zA-Z]+")


class SplitName(NamedTuple):
    """What a name says of a split; sorts by what is preferred.

    Attributes:
        order: among the words for splits.
        rank: 0 as this app writes it, 1 in another spelling or with words such as "images", 2 with other words.
        others: these other words.
    """

    order: int
    rank: int
    others: tuple[str, ...] = ()

    @property
    def kind(self) -> Kind:
        """What the pictures are for."""
        if self.order < len(_TRAIN):
            return "train"
        return "test" if self.order < len(_TRAIN) + len(_TEST) else "validation"


@lru_cache(maxsize=10_000)  # asked again for the folder of each picture
def split_name(name: str) -> SplitName | None:
    """Read a name as that of a split; None where it is none, or names several.

    >>> split_name("Training").kind, split_name("TestImages").kind, split_name("cat"), split_name("seg_train").others
    ('train', 'test', None, ('seg',))
    """
    if name in _EXACT:
        return SplitName(_ORDER[name], 0)
    words = [_without_suffix(word.casefold()) for word in _words(name)]
    orders = {_ORDER[word] for word in words if word in _ORDER}
    if len(orders) != 1:
        return None
    others = tuple(word for word in words if word not in _ORDER and word not in _NEUTRAL)
    return SplitName(orders.pop(), 2 if others else 1, others)


def split_of(names: Iterable[str]) -> SplitName | None:
    """The split that the last of some names says, from the outermost folder to the innermost."""
    found = [split for split in map(split_name, names) if split]
    return found[-1] if found else None


def says_nothing(name: str) -> bool:
    """Whether a name says that there are pictures, and no more.

    >>> says_nothing("Images"), says_nothing("no_masks")
    (True, False)
    """
    words = [word.casefold() for word in _words(name)]
    return bool(words) and all(word in _NEUTRAL for word in words)


def _words(name: str) -> list[str]:
    """Words of a name, without accents."""
    return _WORDS.findall(_without_accents(name))


def _without_suffix(word: str) -> str:
    """The word for a split in such as "trainset" and "testdata"; else the word itself."""
    for suffix in _NEUTRAL:
        if (stem := word.removesuffix(suffix)) in _ORDER:
            return stem
    return word
