"""Exported models: what they compute without this project, how they are compared, and what is written where."""

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout, suppress
from functools import cache
from importlib.util import find_spec
from io import BytesIO, StringIO
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import tifffile
import torch
from documented import TEXTS, blocks
from image_formats import MATRIX
from numpy.typing import NDArray
from photos import draw_photo
from PIL import Image
from raster_bytes import of_set, pixels
from scripts import PACKAGES, imports_of

from augment.data.dataset import Split
from augment.data.rasters import Raster
from augment.params import Size
from augment.params.pixel_format import PixelFormat
from augment.pipeline.serving.torch_crops import Crop
from augment.recipe.plan import build_plan
from augment.recipe.steps import parse_aug
from augment.support.errors import UserError
from trainer.models.registry import Cnn
from trainer.predictions.predict import predict
from trainer.run.best_model import LoadedModel, load_best_model
from trainer.tasks.keypoints import MIRRORED
from trainer.tasks.registry import task_named
from trainer.tasks.regress import standardize
from trainer.tasks.segment import Segment
from trainer.tools.evaluate import evaluate
from trainer.tools.export.command import main
from trainer.tools.export.comparison import Check, _sentence, compare
from trainer.tools.export.graph import INPUT, Served, halved, onnx_bytes, program_bytes, quantized
from trainer.tools.export.write import export, predict_source

COLORS = ("blue", "green", "red")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEGs of several sizes, turned by their EXIF block or not, of which some look like another class."""
    root = tmp_path_factory.mktemp("images")
    draw = np.random.default_rng(5)
    for channel, name in enumerate(reversed(COLORS)):
        (root / name).mkdir()
        for seed in range(4):
            width, height = draw.integers(20, 60, 2)
            photo = draw_photo(int(width), int(height), 100 * channel + seed) // 2
            photo[..., channel if seed else (channel + 1) % 3] += 110
            exif = Image.Exif()
            exif[0x0112] = 6 if seed == 2 else 1
            Image.fromarray(photo).save(root / name / f"{seed}.jpg", quality=95, exif=exif)
    return root


def outputs(trained: LoadedModel, folder: Path) -> Split:
    """Return the images of a folder with their targets."""
    files = sorted(folder.glob("*/*"))
    return Split(tuple(files), tuple(trained.classes.index(file.parent.name) for file in files))


def test_an_export_scores_what_evaluate_scores(
    finished_run: Path,
    images: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its script needs only the packages that it names."""
    pytest.importorskip("onnxscript")
    given = ["--preprocessing", "beside", "fit.tta=flip", "--out", str(tmp_path / "out")]
    assert main([str(finished_run), str(images), *given]) == 0
    assert "12 images: the largest difference in a probability is" in capsys.readouterr().out
    assert imports_of(tmp_path / "out/predict.py") == {*PACKAGES, "transform"}
    monkeypatch.syspath_prepend(tmp_path / "out")
    script = runpy.run_path(str(tmp_path / "out/predict.py"))
    sys.modules.pop("transform", None)
    files = sorted(images.glob("*/*.jpg"))
    right = 0
    for file, expected in zip(files, predict(load_best_model(finished_run, tta="flip"), files, top=3), strict=True):
        with Image.open(file) as image:
            found = script["predict"](image)["probabilities"]
        by_name = dict(zip(script["CLASSES"], found.tolist(), strict=True))
        assert by_name == pytest.approx(dict(expected.classes), abs=2e-3)
        right += max(by_name, key=by_name.__getitem__) == file.parent.name
    scores = evaluate(finished_run, images, tta="flip").values
    assert 0 < scores["val_accuracy"] < 1
    assert right / len(files) == scores["val_accuracy"]
    report = json.loads((tmp_path / "out/export.json").read_text())
    assert report["exported"] == pytest.approx(report["pytorch"], abs=0.01)
    assert report["exported"]["val_accuracy"] == scores["val_accuracy"]
    assert report["differing"] == []
    assert report["images"] == 12


def test_a_difference_is_found(finished_run: Path, images: Path) -> None:
    trained = load_best_model(finished_run, data=False)
    split = outputs(trained, images)
    served = Served(trained)

    def red(image: object) -> list[Any]:
        return [np.float32([0, 0, 1])]

    found = compare(trained, split, {"red": red})["red"]
    assert found.exported["val_accuracy"] == pytest.approx(1 / 3)
    assert 0 < len(found.differing) < 12
    assert found.largest > 0.1
    assert served.outputs == ("logits", "probabilities")


def test_the_sentence_names_pixels_of_masks() -> None:
    trained: Any = SimpleNamespace(task=Segment())
    assert _sentence(Check(2, {}, {}, 0, ()), trained).endswith(
        "All images have the same class in at least 99% of the pixels."
    )
    assert "1 image has other classes in more than 1% of the pixels: a" in _sentence(
        Check(2, {}, {}, 0, ("a",)), trained
    )


# --- the graph ---


def printed_names(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the names that the predict.py of a folder prints for an image."""
    Image.new("RGB", (9, 7)).save(folder / "a.png")
    monkeypatch.setattr(sys, "argv", ["predict.py", str(folder / "a.png")])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(folder / "predict.py"), run_name="__main__")
    return [word.split()[0] for word in capsys.readouterr().out.split("  ")[1:]]


@pytest.fixture
def no_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Export a model that returns equal numbers whatever the image, in place of a graph, which takes seconds."""
    onnx = pytest.importorskip("onnx")

    def constant(program: object, served: Served, metadata: Mapping[str, object]) -> bytes:
        count = len(cast(Any, metadata["classes"])) * (2 if served.outputs == ("numbers",) else 1)
        kind, halves = f"float[1, {count}]", ", ".join(["0.5"] * count)
        made = " ".join(f"{name} = Constant<value = {kind} {{{halves}}}>()" for name in served.outputs)
        model = onnx.parser.parse_model(
            f"""<ir_version: 8, opset_import: ["": 17]> network (uint8[1, height, width, 3] images) =>
            ({", ".join(f"{kind} {name}" for name in served.outputs)}) {{ {made} }}"""
        )
        for key, value in metadata.items():
            model.metadata_props.add(key=key, value=json.dumps(value))
        return bytes(model.SerializeToString())

    monkeypatch.setattr(Served, "export", lambda _: None)
    monkeypatch.setattr("trainer.tools.export.write.onnx_bytes", constant)


@pytest.mark.usefixtures("no_graph")
def test_the_script_prints_both_coordinates_of_each_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxscript")
    network = Cnn().build(4, Size(32, 32)).eval()
    network.register_buffer(MIRRORED, torch.tensor([1, 0]))
    config: Any = SimpleNamespace(fit=SimpleNamespace(tta="none"), aug=parse_aug({"size": 32, "val": {"resize": None}}))
    export(LoadedModel(config, ("top", "left"), network, task_named("keypoints"), Path()), tmp_path)
    assert printed_names(tmp_path, monkeypatch, capsys) == ["top_x", "top_y", "left_x", "left_y"]


@pytest.mark.usefixtures("no_graph")
@pytest.mark.parametrize(("thresholds", "printed"), [((0.4, 0.6, 0.5), ["c", "a"]), ((0.6, 0.6, 0.6), ["no"])])
def test_the_script_prints_the_labels_that_reach_their_thresholds(
    thresholds: tuple[float, ...],
    printed: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("onnxscript")
    network, aug = Cnn().build(3, Size(32, 32)).eval(), parse_aug({"size": 32, "val": {"resize": None}})
    config: Any = SimpleNamespace(fit=SimpleNamespace(tta="none"), aug=aug)
    task = task_named("multilabel")
    export(LoadedModel(config, ("a", "b", "c"), network, task, Path(), thresholds=thresholds), tmp_path)
    assert printed_names(tmp_path, monkeypatch, capsys) == printed


@pytest.mark.usefixtures("no_graph")
def test_the_script_survives_images_of_strangers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxscript")
    network, aug = Cnn().build(2, Size(32, 32)).eval(), parse_aug({"size": 32, "val": {"resize": None}})
    config: Any = SimpleNamespace(fit=SimpleNamespace(tta="none"), aug=aug)
    export(LoadedModel(config, ("\033[31mred", "\ud800"), network, task_named("classify"), Path()), tmp_path)
    (folder := tmp_path / "images").mkdir()
    Image.new("RGB", (9, 7)).save(folder / "a\033[31m\udcff.png")
    Image.new("RGB", (99, 99)).save(folder / "bomb.png")
    (folder / "c.eps").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 12 8\n%%EndComments\nshowpage\n%%EOF\n"
    )
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", "gs")  # the script turns it off
    monkeypatch.setattr("subprocess.check_call", lambda *_, **__: pytest.fail("Ghostscript was started"))
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 1000)
    monkeypatch.setattr(sys, "argv", ["predict.py", str(folder)])
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(str(tmp_path / "predict.py"), run_name="__main__")
    printed = capsys.readouterr()
    assert re.fullmatch(rf"{folder}/a\?\[31m\?\.png  (\?\[31mred|\?) [\d.]+  (\?\[31mred|\?) [\d.]+\n", printed.out)
    bomb, eps = printed.err.splitlines()
    assert bomb.startswith(f"{folder}/bomb.png: Image size (9801 pixels)")
    assert eps.startswith(f"{folder}/c.eps: ")


def reader_of(form: PixelFormat) -> Callable[[Path], NDArray[Any]]:
    """Return the function of predict.py that reads an image."""
    source = predict_source(inside=True, pixels=form)
    names: dict[str, Any] = {"Path": Path, "np": np, "Image": Image}
    exec(source[source.index("def read_exif(") : source.index("\ndef predict(image):")], names)
    read: Callable[[Path], NDArray[Any]] = names["read"]
    return read


def test_the_script_reads_no_other_tiff(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"{number}.tif").write_bytes(of_set(pixels(1) + number, number))
    np.testing.assert_array_equal(reader_of(PixelFormat(1, "uint16"))(tmp_path / "1.tif"), pixels(1) + 1)


def test_the_script_rejects_cmyk(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "x.tif", pixels(4), photometric="separated")
    with pytest.raises(OSError, match="stores colors in an unusual way"):
        reader_of(PixelFormat.of(4, "uint16"))(tmp_path / "x.tif")


def test_the_script_reads_arrays_that_tifffile_saved_without_settings(tmp_path: Path) -> None:
    image = pixels(10, size=(24, 16))
    tifffile.imwrite(tmp_path / "x.tif", image)
    np.testing.assert_array_equal(reader_of(PixelFormat.of(10, "uint16"))(tmp_path / "x.tif"), image)


@pytest.mark.filterwarnings("ignore")  # of Pillow and NumPy, about damaged files
@pytest.mark.parametrize("form", [PixelFormat.of(1), PixelFormat.of(4), PixelFormat.of(3, range=(10, 200))], ids=str)
def test_the_script_reads_an_image_as_training_does_or_rejects_it(form: PixelFormat, tmp_path: Path) -> None:
    """16-bit images of any colors, orientations of any kind, TIFFs of any layout."""
    read, same, differing = reader_of(form), 0, []
    for name, content in MATRIX.items():
        file = tmp_path / ("x.tif" if content[:2] in (b"II", b"MM") else "x.png")
        file.write_bytes(content)
        with suppress(Exception):
            found = read(file)
            try:
                expected = Raster(file, form).read_pixels()
            except UserError as error:
                expected = np.zeros(0) if "16" in str(error) else found  # tifffile may read what Pillow does not
            if found.shape == expected.shape and np.abs(found.astype(int) - expected).max() <= 2:
                same += 1
            elif name != "TIFF XMP":  # only Pillow rotates it
                differing.append(name)
    assert differing == []
    assert same > 200


NAMES = ("x", "year", "y", "z")
LETTERBOX = parse_aug({"size": 32, "val": {"letterbox": None}})


@pytest.fixture(scope="module")
def of_numbers() -> tuple[Served, Any, bytes]:
    """Return a model of four numbers with its preprocessing, and its graph, also as ONNX."""
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    network = Cnn().build(4, Size(32, 32)).eval()
    standardize(network, torch.tensor([0.0, 1990.0, -5.0, 7.0]), torch.tensor([1.0, 20.0, 0.1, 1.0]))
    config: Any = SimpleNamespace(fit=SimpleNamespace(tta="none"), aug=LETTERBOX)
    served = Served(LoadedModel(config, NAMES, network, task_named("regress"), Path()), build_plan(LETTERBOX, "val"))
    program = served.export()
    return served, program, onnx_bytes(program, served, {"classes": NAMES, "outputs": served.outputs})


def test_a_graph_computes_what_the_run_does(
    of_numbers: tuple[Served, Any, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Numbers are in their own units, for any number of images of any size; the script prints all of them."""
    served, program, content = of_numbers
    graph, crop = program.module(), Crop(build_plan(LETTERBOX, "val"))
    torch.manual_seed(1)
    for shape in ((1, 50, 20, 3), (3, 21, 90, 3)):
        photos = torch.randint(0, 256, shape, dtype=torch.uint8)
        with torch.inference_mode():
            expected = served.network(crop(photos))
            (numbers,) = graph(photos)
        assert expected.shape == (shape[0], 4)
        torch.testing.assert_close(numbers, expected)
    (tmp_path / "model.onnx").write_bytes(content)
    (tmp_path / "predict.py").write_text(predict_source(inside=True))
    assert imports_of(tmp_path / "predict.py") == PACKAGES
    assert printed_names(tmp_path, monkeypatch, capsys) == list(NAMES)


def test_a_graph_averages_points_of_any_number_of_mirror_images() -> None:
    network = Cnn().build(4, Size(32, 32)).eval()
    network.register_buffer(MIRRORED, torch.tensor([1, 0]))
    config: Any = SimpleNamespace(fit=SimpleNamespace(tta="flip"), aug=parse_aug({"size": 32}))
    graph = Served(LoadedModel(config, ("a", "b"), network, task_named("keypoints"), Path())).export().module()
    assert graph(torch.zeros(3, 3, 32, 32))[0].shape == (3, 4)


def test_a_model_that_cannot_be_exported_gives_one_sentence() -> None:
    class Odd(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images.mean((2, 3)) if images.sum() > 0 else images.amax((2, 3))

    aug = parse_aug({"size": 32})
    config = SimpleNamespace(fit=SimpleNamespace(tta="none"), aug=aug)
    with pytest.raises(UserError, match=r"^the model cannot be exported: .") as caught:
        Served(LoadedModel(cast(Any, config), COLORS, Odd(), task_named("classify"), Path())).export()
    assert "\n" not in str(caught.value)


# --- variants ---


@pytest.fixture(scope="module")
def data(images: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Overrides for a dataset with these images in both splits."""
    root = tmp_path_factory.mktemp("data")
    for split in ("train", "val"):
        (root / split).symlink_to(images)
    return ["data=folder", f"data.root={root}"]


@pytest.fixture(scope="module")
def exported(
    finished_run: Path, data: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[Path, str]]:
    """Return the folder with all variants, and what is printed, with the preprocessing inside or beside the model."""
    pytest.importorskip("onnxscript")

    @cache
    def export_all(place: str) -> tuple[Path, str]:
        folder = tmp_path_factory.mktemp(place)
        (folder / "model.onnx").symlink_to(folder / "elsewhere.onnx")
        given = ["--variants", "torch,fp16,int8", "--preprocessing", place, "--calibrate", "10", "--out", str(folder)]
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as printed:
            patch.setattr("trainer.tools.export.write._SECONDS", 0.01)
            assert main([str(finished_run), *data, *given]) == 0
        return folder, printed.getvalue()

    return export_all


@pytest.mark.parametrize("place", ["inside", pytest.param("beside", marks=pytest.mark.long)])
def test_variants_are_compared_in_one_table(
    exported: Callable[[str], tuple[Path, str]],
    place: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, printed = exported(place)
    assert f"python {folder / 'predict.py'} IMAGE" in printed
    report = json.loads((folder / "export.json").read_text())
    names = ["model.onnx", "model.pt2", "model-fp16.onnx", "model-int8.onnx"]
    assert list(report["files"]) == names
    for name, found in report["files"].items():
        assert name in printed
        assert found["bytes"] == (folder / name).stat().st_size
        assert found["lost"] == pytest.approx(
            100 * (report["pytorch"]["val_accuracy"] - found["exported"]["val_accuracy"])
        )
        assert found["images_per_second"] > 0
    plain, program, half, int8 = report["files"].values()
    assert program["largest"] == pytest.approx(plain["largest"], abs=1e-4)
    assert half["bytes"] < 0.7 * plain["bytes"]
    assert half["largest"] < 0.02
    assert plain["largest"] < int8["largest"] < 0.2
    monkeypatch.syspath_prepend(folder)
    Image.new("RGB", (9, 7)).save(folder / "a.png")
    for name in ("model-fp16.onnx", "model-int8.onnx"):
        monkeypatch.setattr(sys, "argv", ["predict.py", str(folder / name), str(folder / "a.png")])
        with pytest.raises(SystemExit, match="0"):
            runpy.run_path(str(folder / "predict.py"), run_name="__main__")
        assert capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["predict.py", "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(folder / "predict.py"), run_name="__main__")
    assert "python predict.py MODEL.onnx IMAGE_OR_FOLDER" in capsys.readouterr().err
    sys.modules.pop("transform", None)


def test_float16_does_not_round_the_units_of_numbers() -> None:
    """Between 1024 and 2048, float16 has whole numbers only."""
    torch.manual_seed(0)
    network = Cnn().build(1, Size(32, 32)).eval()
    standardize(network, torch.tensor([1990.4]), torch.tensor([20.0]))
    images = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        expected, found = network(images), halved(network)(images)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, atol=0.1, rtol=0)
    assert not torch.equal(found, expected)
    assert next(network.parameters()).dtype == torch.float32, "a copy"


def test_int8_leaves_preprocessing_and_the_last_layer_alone(of_numbers: tuple[Served, Any, bytes]) -> None:
    onnx = pytest.importorskip("onnx")
    served, program, content = of_numbers
    photos = (np.random.default_rng(i).integers(0, 256, (1, 40, 50, 3)).astype(np.uint8) for i in range(10))
    model = onnx.load_from_string(quantized(content, photos))
    made_by = {name: node.op_type for node in model.graph.node for name in node.output}
    inputs = [made_by.get(node.input[0]) for node in model.graph.node if node.op_type in ("Conv", "Gemm", "MatMul")]
    *inner, last = inputs
    assert inner.count("DequantizeLinear") == len(
        [m for m in served.network.modules() if isinstance(m, torch.nn.Conv2d)]
    )
    assert last != "DequantizeLinear"
    assert json.loads({of.key: of.value for of in model.metadata_props}["classes"]) == list(NAMES)
    assert torch.export.load(BytesIO(program_bytes(program, {"classes": NAMES}))).module()


@pytest.mark.parametrize("clip", ["Clip(wide, low, high)", "Relu(wide)"])
def test_int8_uses_all_its_levels_within_a_clip(clip: str) -> None:
    """The layer before the clip returns -600 to 6. Its own range would leave two or three levels to the clip."""
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]>
        network (float[1, 1, 1, 64] images) => (float[1, 1, 1, 64] outputs)
        <float[2, 1, 1, 1] large = {{6, -600}}, float[1, 2, 1, 1] equal = {{1, 1}},
         float low = {{0}}, float high = {{6}}>
        {{ wide = Conv(images, large) clipped = {clip} outputs = Conv(clipped, equal) }}"""
    )
    for number, node in enumerate(model.graph.node):
        node.name = f"node{number}"
    images = np.linspace(0, 1, 64, dtype=np.float32).reshape(1, 1, 1, 64)
    plain = model.SerializeToString()
    small = quantized(plain, [images])
    ours, theirs = (runtime.InferenceSession(given).run(None, {INPUT: images})[0] for given in (plain, small))
    np.testing.assert_allclose(theirs, ours, atol=0.05)


def test_int8_leaves_the_first_of_many_layers_alone() -> None:
    onnx = pytest.importorskip("onnx")
    names = ["images", *(f"out{number}" for number in range(17)), "outputs"]
    layers = " ".join(f"{after} = Conv({before}, weight_{before})" for before, after in pairwise(names))
    # Equal weights would become one.
    weights = ", ".join(f"float[1, 1, 1, 1] weight_{name} = {{1.{i:02}}}" for i, name in enumerate(names[:-1], 1))
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]>
        network (float[1, 1, 8, 8] images) => (float[1, 1, 8, 8] outputs) <{weights}>
        {{ {layers} }}"""
    )
    for number, node in enumerate(model.graph.node):
        node.name = f"node{number}"
    small = onnx.load_from_string(quantized(model.SerializeToString(), [np.ones((1, 1, 8, 8), np.float32)]))
    made_by = {name: node.op_type for node in small.graph.node for name in node.output}
    kinds = [made_by.get(node.input[1]) for node in small.graph.node if node.op_type == "Conv"]
    assert [kind == "DequantizeLinear" for kind in kinds] == [False, *[True] * 16, False]


def test_a_model_that_cannot_be_quantized_gives_one_sentence() -> None:
    pytest.importorskip("onnx")
    with pytest.raises(UserError, match=r"^int8: .") as caught:
        quantized(b"nothing", iter(()))
    assert "\n" not in str(caught.value)


# --- other runtimes, as the docs show them ---


def shown(*words: str) -> str:
    """Return the Python block of the pages on exported models with these words."""
    pages = ("docs/export.md", "docs/serving.md")
    (code,) = [code for page, code in blocks("python") if page in pages and all(w in code for w in words)]
    return code


@pytest.mark.slow
def test_other_runtimes_as_shown(
    exported: Callable[[str], tuple[Path, str]], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    monkeypatch.chdir(exported("inside")[0])
    expected = onnxruntime.InferenceSession("model.onnx").run(None, {"images": np.zeros((1, 480, 640, 3), np.uint8)})
    names: dict[str, Any] = {}
    exec(shown("torch.export.load", "torchvision"), names)
    for ours, theirs in zip(expected, names["outputs"], strict=True):
        np.testing.assert_allclose(theirs.detach().numpy(), ours, atol=1e-4)
    if not find_spec("openvino"):
        pytest.skip("OpenVINO is not installed")
    (line,) = re.findall(r"^    (ovc .*)$", TEXTS["docs/serving.md"], re.M)
    folder = str(Path(sys.executable).parent)
    subprocess.run(shlex.split(line), check=True, env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"})
    # In a process of its own, because its import warns.
    code = shown("openvino") + "np.savez('found.npz', *(outputs[i] for i in range(2)))\n"
    subprocess.run([sys.executable, "-c", code], check=True)
    for ours, theirs in zip(expected, np.load("found.npz").values(), strict=True):
        np.testing.assert_allclose(theirs, ours, atol=1e-3)


@pytest.mark.slow
def test_core_ml_as_shown(finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("coremltools")
    given = ["--unchecked", "--variants", "torch", "--preprocessing", "beside", "--out", str(tmp_path)]
    assert main([str(finished_run), *given]) == 0
    monkeypatch.chdir(tmp_path)
    exec(shown("coremltools").replace("224, 224", "16, 20"), {})
    assert (tmp_path / "model.mlpackage").is_dir()


# --- mistakes ---


def test_a_link_is_replaced_and_not_followed(exported: Callable[[str], tuple[Path, str]]) -> None:
    folder, _ = exported("inside")
    assert (folder / "model.onnx").is_file()
    assert not (folder / "model.onnx").is_symlink()
    assert not (folder / "elsewhere.onnx").exists()


def test_a_missing_package_is_named(finished_run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UserError, match=r"needs the package onnxscript. .*: pip install 'dali-trainer\[export\]'"):
        export(load_best_model(finished_run, data=False), tmp_path)
