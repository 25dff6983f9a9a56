"""Mistakes on the command line cost one message, exit code 2 and no folder."""

from pathlib import Path

import pytest
from runs import draw_classes

from trainer.cli.main import main

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_classes(tmp_path_factory.mktemp("photos"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["+aug=imagenete"], "aug: unknown name 'imagenete'. Did you mean 'imagenette'?"),
        (["data=foldr"], "data: unknown name 'foldr'. Did you mean 'folder'?"),
        (["model=tim"], "model: unknown name 'tim'. Did you mean 'timm'?"),
        (["model=timm", "model.name=resnet81"], "model.name: unknown model 'resnet81'. Did you mean 'resnet18'?"),
        (["fit.epoch=3"], "fit.epoch: unknown key. Did you mean 'epochs'?"),
        (["+fit.epoch=3"], "fit.epoch: unknown key. Did you mean 'epochs'?"),
        (["fit.image_size=64"], "fit.image_size: unknown key. Did you mean 'aug.size'?"),
        (["fit.pretrained=true"], "fit.pretrained: unknown key. Did you mean 'model.pretrained'?"),
        (["fit.ema=0.9"], "fit.ema: unknown key. Did you mean 'callbacks.ema'?"),
        (["fit.mixup=0.2"], "fit.mixup: unknown key. Did you mean 'aug.train.mixup'?"),
        (["fit.schedule=cosine"], "fit.schedule: unknown name 'cosine'. Did you mean 'one_cycle'?"),
        (["fit.seed=1"], "fit.seed: unknown key. Did you mean 'seed'?"),
        (["data.batch_size=8"], "data.batch_size: unknown key. Did you mean 'fit.batch_size'?"),
        (["model.workers=8"], "model.workers: unknown key. Did you mean 'fit.threads'?"),
        (["fit.epochs=many"], "fit.epochs: 'many' is not allowed. Allowed: a whole number"),
        (["+aug.trian.rotate.p=1"], "aug.trian: unknown key. Did you mean 'train'?"),
        (["aug.train.rotat.p=1"], "aug.train.rotat: unknown op 'rotat'. Did you mean 'rotate'?"),
        (["aug.train.rotate.p=1.5"], "aug.train.rotate.p: 1.5 is not allowed. Allowed: a number from 0 to 1"),
        (["aug.train.rotate.angle_range=[5,-5]"], "aug.train.rotate.angle_range: [5, -5] is not allowed"),
        (["+aug=imagenette", "aug.train.resize={}"], "Allowed: at most one crop, as the first step"),
        (["callbacks.gradclip={}"], "callbacks.gradclip: unknown callback. Did you mean 'grad_clip'?"),
        (["~aug.train.rotat"], "aug.train.rotat"),
        (["seed=-1"], "seed: -1 is not allowed"),
        (["data=folder"], "data.root: missing"),
        (["data=folder", "data.root=nowhere"], "data.root=nowhere: there is no such folder"),
        (["fit.resume=nowhere"], "fit.resume=nowhere: no such folder"),
        (["seed=0,1"], "error: seed=0,1: several values make a sweep, which only `python -m trainer -m` runs."),
        (["+experiment=imagenete_5"], "experiment: unknown name 'imagenete_5'. Did you mean 'imagenette_5'?"),
        (["+experiment=imagenette_5", "fit=article"], "fit=article: sets fit.epochs=8, but the experiment"),
        (["-m", "experiment=glob(image_net*)"], "experiment: glob(image_net*) matches no file. Allowed: article_2019"),
        (["-m", "seed=0,1", "fit.epochs=2,x"], "fit.epochs: 'x' is not allowed"),
        (["seed=0,1", "-m", "fit.epochs=2,x"], "fit.epochs: 'x' is not allowed"),
    ],
)
def test_mistakes_cost_one_message_and_leave_nothing(
    arguments: list[str], message: str, photos: Path, own_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = [] if any(a.startswith("data=") for a in arguments) else ["data=folder", f"data.root={photos}"]
    with pytest.raises(SystemExit) as stopped:
        main([*arguments, *data])
    printed = capsys.readouterr()
    assert stopped.value.code == 2
    assert message in printed.err
    assert len(printed.err.strip().splitlines()) == 1
    assert printed.out == ""
    assert not list(own_folder.glob("outputs/2*"))
