"""`python -m trainer push RUN USER/NAME`: publish a run's best model on the Hugging Face Hub."""

import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from jinja2 import Template

from augment.cli.parser import TRUST_FLAG, readable_errors
from augment.cli.trust import UntrustedError
from augment.recipe.plan import build_plan
from augment.support.errors import UserError
from augment.support.formatting import markdown, one_line, printable
from trainer.loop.checkpoint import BEST, BestModel, load, save
from trainer.run.best_model import load_best_model
from trainer.run.config.schema import CONFIG_FILE, config_text
from trainer.run.folder.run_names import RunParser
from trainer.run.hub import hub_errors

_EXAMPLES = """\
  RUN USER/NAME            to a private repository, which is created if it does not exist
  RUN USER/NAME --public   to a public repository

RUN is the folder of a run, or last, best, SWEEP:last or SWEEP:best. First log in with `hf auth login`, or set HF_TOKEN.
push uploads best.pt without validation outputs, config.yaml without the dataset and local paths, and a model card. Use
hf://USER/NAME as the name of the model in load_model, predict, evaluate and export."""

# Class names are in a code block, so that Markdown in them has no effect.
_CARD = Template("""\
---
library_name: dali-trainer
pipeline_tag: {{ {"segment": "image-segmentation", "detect": "object-detection", "keypoints": "keypoint-detection"}\
.get(task, "image-classification") }}
{% if license %}license: {{ license | tojson }}
{% endif %}---

# {{ name }}

{{ model }}, trained with dali-trainer. It predicts {{ count }}:

{% for each in classes %}    {{ each }}
{% endfor %}
## Scores

Scores of the best epoch, on the validation images that selected it.

| metric | value |
|---|---|
{% for key, value in row.items() if key.startswith("val_") %}| {{ markdown(key) }} | {{ "%.4f" | format(value) }} |
{% endfor %}
## Use

    python -m trainer predict hf://{{ name }} photos/

```python
from trainer import load_model

load_model("hf://{{ name }}").predict("photos/")
```

## Preprocessing

{{ plan | indent(4, first=True) }}
""")


def push(run: Path, name: str, options: Namespace) -> str:
    """Publish the best model of a run in a single commit. Return the URL of the repository.

    Raises:
        UserError: the folder contains no trained model, or the request to the hub fails.
    """
    from huggingface_hub import HfApi

    try:
        trained, best = load_best_model(run, trust=options.trust, data=False), load(run / BEST, BestModel)
    except UntrustedError as error:  # the error suggests passing a setting, but push takes none
        raise UserError(f"{str(error).rpartition(' Pass ')[0]} Add {TRUST_FLAG} if you trust the folder.") from error
    resolved = {**trained.config.resolved, "data": {"source": "sample"}, "callbacks": {}, "run": {}}
    resolved["fit"] = {**resolved["fit"], "gpus": None, "device": "auto"}
    card = _CARD.render(
        name=name,
        task=best.task,
        license=options.license,
        model=trained.config.model_name,
        count=trained.task.count(len(best.classes)),
        classes=[one_line(" ".join(each.split())) for each in best.classes],
        markdown=markdown,
        row=best.row,
        plan=str(build_plan(trained.config.aug, "val")),
    )
    api = HfApi()
    with TemporaryDirectory() as folder:
        save(replace(best, samples=None), Path(folder, BEST))
        Path(folder, CONFIG_FILE).write_text(config_text(replace(trained.config, resolved=resolved)))
        Path(folder, "README.md").write_text(card)
        with hub_errors(name):
            url = api.create_repo(name, private=not options.public, exist_ok=True)
            if not options.public and not api.model_info(name).private:
                raise UserError(f"{name}: this repository is public. Add --public, or name another repository.")
            api.upload_folder(repo_id=name, folder_path=folder, commit_message=f"Add {trained.config.model_name}")
    return str(url)


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit code."""
    description = "Publish the best model of a run on the Hugging Face Hub, with its preprocessing and a model card."
    parser = RunParser("trainer push", description, _EXAMPLES, arguments="RUN USER/NAME")
    parser.add_argument("--public", action="store_true", help="publish to a public repository (default: private)")
    parser.add_argument("--license", metavar="ID", help="license in the model card, such as apache-2.0")
    parser.add_trust_flag()
    with readable_errors():
        options, (run, name), _ = parser.split_paths(arguments)
        sys.stdout.write(printable(f"{push(run, str(name), options)}\n"))
    return 0
