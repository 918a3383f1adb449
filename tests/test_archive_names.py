"""File names in zips from any system: unstated encodings, backslashes, and unsafe names."""

import io
import random
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path

import pytest
from packed import Sandbox, classes, entry, pack, picture

from vit.data.archives.name_encodings import encoding_of


def zip_raw(path: Path, names: list[bytes], flag: int = 0, extra: dict[bytes, bytes] | None = None) -> None:
    """Write a zip with these bytes as names, as programs without UTF-8 support do."""
    stored, directory = b"", b""
    for number, name in enumerate(names):
        content, field = picture(number), (extra or {}).get(name, b"")
        sizes = struct.pack("<LLLHH", zlib.crc32(content), len(content), len(content), len(name), len(field))
        fixed = struct.pack("<HHHHH", 20, flag, 0, 0, 0x21) + sizes
        directory += b"PK\1\2" + struct.pack("<H", 20) + fixed + struct.pack("<HHHLL", 0, 0, 0, 0, len(stored))
        directory += name + field
        stored += b"PK\3\4" + fixed + name + field + content
    end = struct.pack("<HHHHLLH", 0, 0, len(names), len(names), len(directory), len(stored), 0)
    path.write_bytes(stored + directory + b"PK\5\6" + end)


def names(*folders: str, mark: str = "/") -> list[str]:
    return [f"{folder}{mark}{number}.jpg" for folder in folders for number in range(4)]


WORDS = {
    "cp932": [
        "猫 犬",
        "表 ソース 能",
        "イヌ ネコ",
        "りんご みかん 桃",
        "正常 異常",
        "良品/欠け 良品/傷",
    ],  # 表ソ能: 0x5c comes second
    "gb18030": ["猫 狗", "苹果 香蕉", "合格 不合格", "花 鸟 鱼", "老虎 狮子 大象", "训练集/猫 训练集/狗"],
    "cp1252": ["chèvre éléphant", "Äpfel Birnen Nüsse", "niño perro", "Löwe Tiger Bär", "coração pé"],
    "cp866": ["кошка собака", "Кошки Собаки", "яблоко груша", "НОРМА БРАК"],
    "cp1251": ["кошка собака", "НОРМА БРАК"],
    "cp437": ["chèvre éléphant", "Äpfel Nüsse", "niño perro", "Löwe Tiger Bär"],
    "cp949": ["고양이 강아지", "정상 불량"],
    "big5": ["貓 狗 鳥", "蘋果 香蕉"],
    "cp852": ["kot pies koń", "łyżka widelec nóż", "kočka pes kůň", "Kočky Psi", "jó hibás repedés"],
    "cp1250": ["żółw ślimak", "jabłko gruszka śliwka", "kočka pes kůň", "židle stůl", "jó hibás repedés"],
    "cp857": ["elma armut çilek", "sağlam bozuk çatlak", "Kuşlar Balıklar Ağaçlar"],
    "cp1254": ["kedi köpek kuş", "sağlam bozuk çatlak", "Kuşlar Balıklar Ağaçlar"],
    "cp737": ["γάτα σκύλος", "Γάτες Σκύλοι", "ΓΑΤΑ ΣΚΥΛΟΣ"],
    "cp1253": ["γάτα σκύλος", "Γάτες Σκύλοι", "ΓΑΤΑ ΣΚΥΛΟΣ"],
    "cp862": ["חתול כלב", "תפוח אגס תפוז"],
    "cp1255": ["חתול כלב", "תפוח אגס תפוז"],
    "cp720": ["قطة كلب", "تفاح موز برتقال"],
    "cp1256": ["قطة كلب", "تفاح موز برتقال", "گربه سگ"],
    "cp874": ["แมว หมา", "ช้าง ม้า วัว", "ดี เสีย"],
    "utf-8": ["猫 犬", "кошка собака", "chèvre éléphant"],
}


@pytest.mark.parametrize("encoding", WORDS)
def test_names_are_decoded_with_the_encoding_that_fits(encoding: str) -> None:
    for words in WORDS[encoding]:
        raw = [name.encode(encoding) for name in names(*words.split())]
        assert [name.decode(encoding_of(raw)) for name in raw] == names(*words.split())


@pytest.mark.parametrize(
    ("encoding", "folders", "message"),
    [("cp932", ["表", "犬"], "Shift-JIS"), ("gb18030", ["猫", "狗"], "GBK"), ("cp866", ["кошка", "собака"], "cp866")],
)
def test_chosen_encoding_is_reported(sandbox: Sandbox, encoding: str, folders: list[str], message: str) -> None:
    zip_raw(sandbox.archive, [name.encode(encoding) for name in names(*folders)])
    result = sandbox.read()
    assert result.classes == tuple(sorted(folders))
    assert message in result.notes[0]


def test_names_that_make_sense_in_two_encodings_are_shown_in_both(sandbox: Sandbox) -> None:
    zip_raw(sandbox.archive, [name.encode("cp1250") for name in names("pies", "koń")])
    assert (
        "It may be cp1250 (Windows, Central Europe) instead: koñ/0.jpg is koń/0.jpg there." in sandbox.read().notes[0]
    )


def test_names_that_make_sense_in_one_encoding_are_shown_once(sandbox: Sandbox) -> None:
    zip_raw(sandbox.archive, [name.encode("cp932") for name in names("りんご", "みかん")])
    assert "instead" not in sandbox.read().notes[0]


def test_all_names_of_an_archive_share_one_encoding(sandbox: Sandbox) -> None:
    # "è" alone is valid UTF-8 and valid GBK (猫); the other names are not valid UTF-8
    zip_raw(sandbox.archive, [name.encode("gb18030") for name in names("猫", "苹果", "北京")])
    assert set(sandbox.read().classes) == {"猫", "苹果", "北京"}


@pytest.mark.parametrize("encoding", ["cp437", "cp932"])
def test_backslashes_separate_folders_if_no_name_has_a_slash(sandbox: Sandbox, encoding: str) -> None:
    folders = ("pets\\cat", "pets\\dog") if encoding == "cp437" else ("動物\\表", "動物\\ソース")
    zip_raw(sandbox.archive, [name.encode(encoding) for name in names(*folders, mark="\\")])
    assert sandbox.read().classes == tuple(sorted(folder.split("\\")[1] for folder in folders))


def test_names_marked_as_utf8_may_have_backslashes(sandbox: Sandbox) -> None:
    files = {name.replace("/", "\\"): content for name, content in classes("tiere/löwe", "tiere/bär").items()}
    pack(sandbox.archive, files)
    result = sandbox.read()
    assert result.classes == ("bär", "löwe") and result.notes == ()


def test_unicode_path_field_counts_if_its_checksum_fits(sandbox: Sandbox) -> None:
    def field(name: bytes, text: str, checksum: int) -> bytes:
        content = b"\1" + struct.pack("<L", checksum) + text.encode()
        return struct.pack("<HH", 0x7075, len(content)) + content

    raw = {f"{letter}{number}/{i}.jpg".encode() for number, letter in enumerate("?_") for i in range(3)}
    extra = {name: field(name, name.decode().replace("?0", "猫").replace("_1", "犬"), zlib.crc32(name)) for name in raw}
    zip_raw(sandbox.archive, sorted(raw), extra=extra)
    assert sandbox.read().classes == ("犬", "猫")


@pytest.mark.parametrize(
    "evil",
    ["..\\evil.png", "pets\\..\\..\\evil.png", "\\evil.png", "\\\\server\\evil.png", "C:\\evil.png", "c:evil.png"],
)
def test_backslashes_cannot_leave_the_folder(sandbox: Sandbox, evil: str) -> None:
    files = {name.replace("/", "\\"): content for name, content in classes("pets/cat", "pets/dog").items()}
    pack(sandbox.archive, files | {evil: picture()})
    sandbox.read()
    assert {name.split("/")[1] for name in sandbox.written()} == {"pets"}


def test_links_in_archives_with_backslashes_are_refused(sandbox: Sandbox) -> None:
    pack(sandbox.archive, {name.replace("/", "\\"): content for name, content in classes("cat", "dog").items()})
    with zipfile.ZipFile(sandbox.archive, "a") as archive:
        link = zipfile.ZipInfo("cat\\link.png")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    assert "a link" in sandbox.refusal()


def test_class_names_differing_in_case_stay_apart_in_any_encoding(sandbox: Sandbox) -> None:
    zip_raw(sandbox.archive, [name.encode("cp866") for name in names("Кошка", "кошка", "собака")])
    result = sandbox.read()
    assert result.classes == ("Кошка", "кошка", "собака")
    assert "Classes that differ only in case are kept apart: Кошка, кошка." in result.notes


def test_names_in_a_tar_are_decoded_like_those_in_a_zip(sandbox: Sandbox) -> None:
    with tarfile.open(sandbox.archive, "w", encoding="cp1252", format=tarfile.GNU_FORMAT) as archive:
        for number, name in enumerate(names("éléphant", "chèvre")):
            archive.addfile(entry(name, size=len(picture(number))), io.BytesIO(picture(number)))
    result = sandbox.read()
    assert result.classes == ("chèvre", "éléphant") and "cp1252" in result.notes[0]


def test_names_of_random_bytes_are_read_or_refused(sandbox: Sandbox) -> None:

    chance = random.Random(0)
    for _ in range(30):
        raw = [bytes(chance.choices(range(1, 256), k=5)).replace(b"/", b"x") + b"/0.jpg" for _ in range(6)]
        assert all(name.decode(encoding_of(raw)) for name in raw)
