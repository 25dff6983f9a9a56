"""Values of strangers that cost time or memory without end, or have other types: each ends in one clear error."""

import io
import json
import math
import os
import signal
import tarfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from copy import copy
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from augment.cli.overrides import split_sweep
from augment.cli.parser import readable_errors
from augment.data.conversion import AsJpeg
from augment.data.formats.records import RecordFile, expand_braces, find_shards
from augment.data.formats.webdataset import read_shard
from augment.data.images import open_image, read_encoded
from augment.data.sources import parse_data
from augment.data.sources.loading import load_dataset
from augment.support import expansion
from augment.support.errors import UserError
from augment.support.files import write_atomically
from augment.support.formatting import from_table_cell, printable, table_cell
from augment.support.untrusted_files import read_object
from augment.support.yaml_files import read_yaml
from trainer.callbacks.recorder import METRICS_FILE, Recorder
from trainer.loop.checkpoint import FORMAT, FitState, load
from trainer.loop.settings import MAX_EPOCHS
from trainer.report.page import render
from trainer.report.run_content import MISTAKES_FILE, read_record
from trainer.run.config.sweep_settings import SearchSettings
from trainer.run.folder.reader import RunFolder
from trainer.run.folder.summary import SUMMARY_FILE
from trainer.run.initial_weights import read_weights
from trainer.sweeps.search_space import parse_space
from trainer.sweeps.trials import TRIALS_FILE, Search
from trainer.sweeps.verdict_text import present

LIMIT = 20  # seconds of each case


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    def late(*_: object) -> None:
        raise TimeoutError("it hangs")

    handler = signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, handler)


def said(work: Callable[[], object]) -> str:
    """Return the error of some work, on one line."""
    with pytest.raises(UserError) as caught:
        work()
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- YAML and JSON ---

YAML = {
    "aliases": "a: &a [x, x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}, *{a}]\n" for a, b in pairwise("abcdefghijk")),
    "merged aliases": "a: &a {x: 1}\nb: {<<: [" + "*a," * 19000 + "]}",
    "an alias of itself": "a: &a [*a]",
    "5,000 digits": "a: " + "9" * 5000,
    "100 digits": "a: " + "9" * 100,
    "hexadecimal digits": "a: 0x" + "f" * 60_000,
    "digits in base 60": "a: 1" + ":10" * 20_000,
    "a long text": f"a: {'x' * 70_000}",
    "a long list": f"a: [{'1,' * 30_000}]",
    "deep lists": "[" * 100_000,
    "deep mappings": "a: " + "{a: " * 1000,
    "a mebibyte": "#" * 2**21,
    "a date of no calendar": "a: !!timestamp foo",
    "no integer": "a: !!int foo",
    "a tag of Python": "a: !!python/object/apply:os.system [ls]",
    "a list as a key": "? [a]\n: b",
    "half a surrogate": 'a: "\\ud800"',
}


@pytest.mark.parametrize("saved", [False, True], ids=["own", "saved"])
@pytest.mark.parametrize("name", YAML)
def test_yaml(name: str, saved: bool, tmp_path: Path) -> None:
    (file := tmp_path / "config.yaml").write_text(YAML[name])
    assert said(lambda: read_yaml(file, folder=tmp_path if saved else None)).startswith(f"{file}: ")


JSON = {
    "deep": '{"a":' * 100_000,
    "digits": '{"a": ' + "9" * 5000 + "}",
    "an integer": '{"a": 1' + "0" * 30 + "}",
    "values": '{"a": [' + "0," * 3_000_000 + "0]}",
    "a mapping that ends": '{"a": {',
    "bytes": "\xff" * 99,
}


@pytest.mark.parametrize("name", JSON)
def test_json(name: str, tmp_path: Path) -> None:
    (file := tmp_path / "summary.json").write_text(JSON[name])
    assert said(lambda: read_object(file)).startswith((f"{file}: ", f"{file} is damaged"))


@pytest.mark.parametrize("line", ["", "{}", '{"epoch": 1}'])
def test_rows(line: str, tmp_path: Path) -> None:
    (tmp_path / METRICS_FILE).write_text(f"{line}\n" * (MAX_EPOCHS + 1))
    run = RunFolder(tmp_path)
    assert (run.rows, list(run.notes)) == ([], [METRICS_FILE])


@pytest.mark.parametrize("number", [1e308, -math.inf, 2**60])
def test_numbers_that_statistics_cannot_add(number: float, tmp_path: Path) -> None:
    row = {"epoch": 0, "val_loss": number}
    (tmp_path / METRICS_FILE).write_text(json.dumps(row))
    (tmp_path / SUMMARY_FILE).write_text(json.dumps({"status": "finished", "last": row}))
    run = RunFolder(tmp_path)
    assert (run.rows, run.last, list(run.notes)) == ([{"epoch": 0}], {"epoch": 0}, [SUMMARY_FILE])


def test_a_long_cell_of_a_table() -> None:
    present(console := Console(file=io.StringIO(), width=80), ("", [["a"], ["x" * 10**6]]))
    assert console.file.tell() < 10**4


@pytest.mark.parametrize(("count", "name", "cells"), [(20, "x" * 10**5, 400), (1300, "x", 0)])
def test_a_matrix_in_a_report(count: int, name: str, cells: int, tmp_path: Path) -> None:
    block = {"kind": "Matrix", "counts": [[1] * count] * count, "names": [name] * count, "shares": False}
    (tmp_path / SUMMARY_FILE).write_text(json.dumps({"status": "finished", "best": {"epoch": 0}}))
    (tmp_path / MISTAKES_FILE).write_text(json.dumps({"epoch": 0, "blocks": [block]}))
    text = render(read_record(tmp_path))
    assert (text.count("predicted as"), len(text) < 10**7) == (cells, True)


def test_rows_of_a_checkpoint() -> None:
    state = {"rows": [{}] * MAX_EPOCHS, "steps": [(0.0, 0, 0.0, 0.0)] * 4000, "meter": None, "seconds": 0}
    (recorder := Recorder()).load_state_dict(state)
    assert len(recorder.rows) == MAX_EPOCHS
    with pytest.raises(ValueError, match="more than 30,000 epochs"):
        Recorder().load_state_dict({**state, "rows": [{}] * (MAX_EPOCHS + 1)})


# --- shards ---

SHARDS = {
    "a size that leads back": (tarfile.REGTYPE, (2**96 - 512).to_bytes(12, "big"), b""),
    "a header that leads back": (tarfile.XHDTYPE, (2**96 - 512).to_bytes(12, "big"), b""),
    "a long header": (tarfile.XHDTYPE, b"%011o\0" % 2**22, b"9" * 2**22),
}


@pytest.mark.parametrize("name", SHARDS)
def test_shards(name: str, tmp_path: Path) -> None:
    kind, size, content = SHARDS[name]
    header = bytearray(tarfile.TarInfo(".a").tobuf(tarfile.USTAR_FORMAT))
    header[124:136], header[148:156], header[156:157] = size, b" " * 8, kind
    header[148:156] = b"%06o\0 " % sum(header)
    (file := tmp_path / "a.tar").write_bytes(bytes(header) + content + bytes(1024))
    assert "a header gives the size" in said(lambda: [*read_shard(RecordFile(file, 0, 0))])


def test_facts_about_all_files_of_a_shard(tmp_path: Path) -> None:
    facts = {f"key{number:06}": "a" for number in range(101)}
    with tarfile.open(file := tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT, pax_headers=facts) as archive:
        archive.addfile(tarfile.TarInfo("a.cls"))
    assert "101 records" in said(lambda: [*read_shard(RecordFile(file, 0, 0))])


# --- patterns ---


@pytest.mark.parametrize(
    "pattern", ["{0..999999999}", "{a,b}" * 40, "{0..9" + "9" * 5000 + "}", "{" * 5000, "{a,b" * 1000, "{1..9}{a}"]
)
def test_braces(pattern: str) -> None:
    assert said(lambda: expand_braces(pattern, "data.train")).startswith("data.train: ")


def test_globs_that_go_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expansion, "MAX_EXPANDED", 500)
    for name in "ab":
        (tmp_path / name).symlink_to(tmp_path)
    (tmp_path / "x.tar").touch()
    assert "more than 500" in said(lambda: find_shards(f"{tmp_path}/**/*.tar", "data.train"))


@pytest.mark.parametrize(
    "value",
    ["range(1000000000)", "shuffle(range(1000000000))", "sort(range(1000000000))", "range(0,1,1e-9)", "range(0,1,0)",
     "range(-1e308,1e308,1e-308)", "range(inf)"],
)  # fmt: skip
def test_ranges(value: str) -> None:
    assert said(lambda: split_sweep([f"seed={value}"])).startswith("seed: ")


def test_jobs_of_a_sweep() -> None:
    assert "more than 50,000" in said(lambda: split_sweep([f"{key}=range(1000)" for key in ("a", "b", "c", "d")]))


# --- the trials of a search ---

TRIALS = {
    "another job": [{"chosen": {"fit.lr": 0.1}, "job": ["0001"]}],
    "no job": [{"chosen": {"fit.lr": 0.1}}],
    "a list": [[1]],
    "values that are a list": [{"chosen": [1], "job": "0001"}],
    "a mapping": {"chosen": {}, "job": "0001"},
    "many": [{"chosen": {}, "job": "0001"}] * 20_001,
    "deep": [{"chosen": {"a": eval("[" * 60 + "]" * 60)}, "job": "0001"}],
}


@pytest.mark.parametrize("name", TRIALS)
def test_trials(name: str, tmp_path: Path) -> None:
    (tmp_path / TRIALS_FILE).write_text(json.dumps({"trials": TRIALS[name]}))
    search = Search(SearchSettings(), tmp_path, "val_accuracy")
    assert TRIALS_FILE in said(search.recorded)


@pytest.mark.parametrize("value", [7, "0.5", True, None, [1], {"a": 1}])
def test_a_value_that_is_not_in_the_space(value: object) -> None:
    (one,) = parse_space(["++fit.lr=interval(0,1)"])
    assert "is not a value of this search" in said(lambda: one.value(value))  # type: ignore[arg-type]


# --- checkpoints ---


def shared() -> list[Any]:
    found: list[Any] = [1]
    for _ in range(60):
        found = [found, found]
    return found


def quantized() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated
        return torch.quantize_per_tensor(torch.zeros(3), 0.1, 0, torch.qint8)


def endless() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def saved(**changes: Any) -> bytes:
    """Return the file of a last.pt."""
    state: dict[str, Any] = {
        "position": (1, 0), "model": {"weight": torch.zeros(3)}, "optimizer": {}, "gradients": {}, "loader": {},
        "callbacks": {}, "random": {},
    }  # fmt: skip
    stream = io.BytesIO()
    torch.save({"format": FORMAT, **state, **changes}, stream)
    return stream.getvalue()


def archive(pickled: bytes, method: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as written:
        written.writestr("x/data.pkl", pickled)
        written.writestr("x/version", "3\n")
    return stream.getvalue()


def two_archives() -> bytes:
    """Return a file in which Python finds an honest archive, and PyTorch a compressed one."""
    stream = io.BytesIO()
    hidden = rezipped(saved(model={"weight": torch.rand(1000)}), stream, zipfile.ZIP_DEFLATED)
    stream.truncate(stream.getvalue().rindex(b"PK\5\6"))
    rezipped(saved(), stream, zipfile.ZIP_STORED, hidden)
    content = stream.getvalue()
    return content[:-6] + hidden.to_bytes(4, "little") + content[-2:]


def rezipped(content: bytes, stream: io.BytesIO, method: int, before: int = 0) -> int:
    """Append the files of an archive to a stream; return where their directory is, from another one on."""
    with zipfile.ZipFile(io.BytesIO(content)) as read, zipfile.ZipFile(stream, "a", method) as written:
        for name in read.namelist():
            written.writestr(name, read.read(name))
        for entry in written.filelist if before else ():
            entry.header_offset -= written.start_dir - before
        return written.start_dir


def in_capitals() -> bytes:
    """Return an archive whose pickle PyTorch finds under a name in capitals."""
    stream = io.BytesIO(saved())
    with zipfile.ZipFile(stream) as read, zipfile.ZipFile(renamed := io.BytesIO(), "w") as written:
        for name in read.namelist():
            written.writestr(name.replace("data.pkl", "DATA.PKL"), read.read(name))
        written.writestr(f"{read.namelist()[0].partition('/')[0]}/a/data.pkl", b"")
    return renamed.getvalue()


def lying() -> bytes:
    """Return an archive with a compressed file that claims to have 100 bytes, but unpacks to 10 MB."""
    stream = io.BytesIO(saved())
    with zipfile.ZipFile(stream, "a", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("archive/data/99", bytes(10**7))
        archive.filelist[-1].file_size = 100
    return stream.getvalue()


def many_entries() -> bytes:
    """Return an archive with an empty file that its directory lists again and again."""
    stream = io.BytesIO(saved())
    with zipfile.ZipFile(stream, "a") as archive:
        archive.writestr("archive/x", b"")
        names = (f"archive/data/{number:060}" for number in range(100_000))
        for name in names:
            archive.filelist.append(copy(archive.filelist[-1]))
            archive.filelist[-1].filename = name
    return stream.getvalue()


def call(name: bytes, number: int) -> bytes:
    """Return a pickle that calls a function with a number."""
    return b"\x80\x02c" + name + b"\n\x8a\x06" + number.to_bytes(6, "little") + b"\x85R."


def shared_tuples(levels: int, grow: bytes) -> bytes:
    """Return the pickle of a mapping with a key of nested tuples."""
    return b"\x80\x02})" + levels * grow + b"K\x01s."


def repeated_calls(function: bytes, text: bytes) -> bytes:
    """Return a pickle that passes the same long text to a function again and again."""
    argument = b"X" + len(text).to_bytes(4, "little") + text + b"q\x00"
    return b"\x80\x02](" + argument + b"c" + function + b"\nq\x01" + 5000 * b"h\x01h\x00\x85R" + b"e."


CHECKPOINTS: dict[str, Callable[[], bytes]] = {
    "a key of shared tuples": lambda: archive(shared_tuples(60, b"q\x00h\x00\x86")),
    "a key of many levels": lambda: archive(shared_tuples(1_000_000, b"\x85")),
    "the same text, encoded often": lambda: archive(repeated_calls(b"_codecs\nencode", bytes(2**22))),
    "the same text, counted often": lambda: archive(repeated_calls(b"collections\nCounter", bytes(2**22))),
    "a storage out of nothing": lambda: archive(call(b"torch.storage\nUntypedStorage", 2**33)),
    "a type in two parts": lambda: archive(call(b"torch\ncuda.FloatTensor", 0)),
    "an archive that unpacks to a gigabyte": lambda: archive(bytes(2**27), zipfile.ZIP_DEFLATED),
    "shared lists": lambda: saved(callbacks={"a": shared()}),
    "lists in themselves": lambda: saved(callbacks={"a": endless()}),
    "100,000 parameter groups": lambda: saved(optimizer={"param_groups": [{"lr": 0.1}] * 100_000}),
    "groups that are a number": lambda: saved(optimizer={"param_groups": 3}),
    "groups that are a tensor": lambda: saved(optimizer={"param_groups": torch.zeros(2)}),
    "gradients that are a tensor": lambda: saved(gradients=torch.zeros(2)),
    "a quantized tensor": lambda: saved(model={"weight": quantized()}),
    "a tensor without data": lambda: saved(model={"weight": torch.zeros(3, device="meta")}),
    "a sparse tensor": lambda: saved(gradients={"weight": torch.zeros(3).to_sparse()}),
    "an expanded tensor": lambda: saved(gradients={"weight": torch.zeros(1).expand(2**40)}),
    "bytes out of nothing": lambda: archive(call(b"builtins\nbytearray", 10**12)),
    "a tensor out of nothing": lambda: archive(call(b"torch\nFloatTensor", 10**12)),
    "many values": lambda: archive(b"\x80\x02]" + b"]" * 2**24 + b"."),
    "a pickle that ends": lambda: archive(b"\x80\x02(((("),
    "no values": lambda: archive(b""),
    "two archives": two_archives,
    "a name in capitals": in_capitals,
    "nothing": lambda: b"",
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_checkpoints(name: str, tmp_path: Path) -> None:
    (file := tmp_path / "last.pt").write_bytes(CHECKPOINTS[name]())
    assert said(lambda: load(file, FitState)).startswith((f"{file}: ", f"{file} is damaged"))


def test_an_archive_is_not_unpacked(tmp_path: Path) -> None:
    """Only the message shows that Python did not read the files."""
    (file := tmp_path / "last.pt").write_bytes(lying())
    assert "compressed" in said(lambda: load(file, FitState))
    file.write_bytes(many_entries())
    assert "its list of tensors has more than 8,388,608 bytes" in said(lambda: load(file, FitState))


def test_an_older_checkpoint_is_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (outside := tmp_path / "outside").write_bytes(saved())
    (file := tmp_path / "last.pt").touch()
    (tmp_path / "last.1.pt").symlink_to(outside)
    opened: list[object] = []
    monkeypatch.setattr(zipfile, "ZipFile", opened.append)
    assert said(lambda: load(file, FitState)).startswith(f"{file}: ")
    assert opened == []


@pytest.mark.parametrize("part", ["whole", "cut", "grown", "bytes"])
def test_weights_of_an_old_format(part: str, tmp_path: Path) -> None:
    stream = io.BytesIO()
    torch.save({"weight": torch.arange(6.0)}, stream, _use_new_zipfile_serialization=False)
    content = stream.getvalue()
    changed = {
        "whole": content,
        "cut": content[:-10],
        "grown": content.replace(b"K\x06", b"J\xff\xff\xff\x7f"),
        "bytes": content[:15] + b"cbuiltins\nbytearray\n" + content[15:],
    }
    (file := tmp_path / "weights.pth").write_bytes(changed[part])
    if part == "whole":
        assert read_weights(str(file)).tensors["weight"].tolist() == list(range(6))
    else:
        assert said(lambda: read_weights(str(file))).startswith(f"{file}: ")


# --- what reaches a spreadsheet, a terminal or a file ---


@pytest.mark.parametrize("name", ["x;=1+1;y", "x,=1", "x\t@SUM(1)", "x|-1", "a\n+1", 'x;"=1+1"', "x; =1", "\uff1d1"])
def test_cells_that_a_spreadsheet_splits(name: str) -> None:
    cell = table_cell(name)
    for separator in ";,\t|\n":
        assert not any(part.lstrip(" \"'").startswith(tuple("=+-@\uff1d")) and part[:1] != "'"
                       for part in cell.split(separator))  # fmt: skip
    assert from_table_cell(cell) == name


def test_no_character_controls_the_terminal() -> None:
    unseen = "\x00\x1b\x7f\x9b\u200e\u200f\u202a\u202e\u2066\u2069\ufeff\u00ad\u2028\U000e0041"
    assert printable(f"a{unseen}ü") == f"a{'?' * len(unseen)}ü"
    assert (
        printable("half of a pair: \ud800; a byte of a file name: \udcff")
        == "half of a pair: ?; a byte of a file name: \udcff"
    )


def test_a_current_folder_that_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here := tmp_path / "here").mkdir()
    monkeypatch.chdir(here)
    here.rmdir()
    with pytest.raises(SystemExit) as ended, readable_errors():
        load_dataset(parse_data({"source": "sample"}))
    assert ended.value.code == 2
    assert "the current folder was deleted. Start" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["pipe", "device", "directory", "limit"])
def test_what_is_in_place_of_an_image(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "image.png"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "directory":
        file.mkdir()
    elif kind == "limit":
        file.touch()
        os.truncate(file, 2**40)  # a sparse file, which a small archive can contain
    else:
        file.symlink_to("/dev/zero")
    with pytest.raises(OSError, match=kind):
        read_encoded(file)


def test_no_image_starts_ghostscript(tmp_path: Path) -> None:
    """Pillow decodes EPS with Ghostscript, which runs the program in the file. IPTC is a container for other images."""
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n%%EOF\n"
    fields = {(3, 20): bytes([9]), (3, 30): bytes([9]), (3, 60): bytes([3, 1]), (3, 120): bytes([5]), (8, 10): eps}
    iptc = b"".join(bytes([0x1C, *tag, 0, len(field)]) + field for tag, field in fields.items())
    for content in (eps, iptc):
        (file := tmp_path / "image.png").write_bytes(content)
        with pytest.raises(OSError, match="is not supported"), open_image(file) as image:
            image.load()
        with pytest.raises(OSError, match="is not supported"):
            AsJpeg(file, 90).read()


def test_what_is_written_follows_no_link(tmp_path: Path) -> None:
    (outside := tmp_path / "outside").write_text("mine")
    (run := tmp_path / "run").mkdir()
    (run / "summary.json").symlink_to(outside)
    write_atomically(run / "summary.json", "theirs")
    (run / ".hydra").symlink_to(tmp_path)
    assert ".hydra is a link" in said(lambda: write_atomically(run / ".hydra" / "outside", "theirs", folder=run))
    assert outside.read_text() == "mine"
