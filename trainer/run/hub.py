"""Runs on the Hugging Face Hub, named `hf://USER/NAME` or `hf://USER/NAME@REVISION`."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from augment.data.dataset import DATA_DIR
from augment.support.errors import UserError, first_line
from trainer.loop.checkpoint import BEST
from trainer.run.config.schema import CONFIG_FILE

HUB_FOLDER = Path(DATA_DIR, "hub")  # the parent of the local folders of runs on the hub

_ADDRESS = re.compile(r"hf:/+([^@]+)(?:@(.+))?")  # `Path` removes one of the slashes


def local_run(run: Path) -> Path:
    """Return the local folder of a run. A run on the hub is downloaded, and downloaded again when it has changed.

    If the hub does not answer or rejects the request, an earlier download is used.

    Raises:
        UserError: the run cannot be downloaded.
    """
    if (address := _ADDRESS.fullmatch(str(run))) is None:
        return run
    from huggingface_hub import hf_hub_download

    name, revision = address.groups()
    folder = f"{name}@{revision or 'main'}".replace("/", "--")
    with hub_errors(f"hf://{name}"):
        local = HUB_FOLDER / folder
        for file in (CONFIG_FILE, BEST):  # unlike `snapshot_download`, this fails if the repository lacks a file
            hf_hub_download(name, file, revision=revision, local_dir=local)
        return local


@contextmanager
def hub_errors(key: str) -> Iterator[None]:
    """Replace errors of the hub with a UserError. Its message starts with `key`, USER/NAME or hf://USER/NAME."""
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError, LocalTokenNotFoundError

    try:
        if key.removeprefix("hf://").count("/") != 1:
            raise UserError(f"{key}: this is not the name of a repository. Use the form USER/NAME.")
        yield
    except UserError:
        raise
    except Exception as error:  # huggingface_hub passes on any error that an unexpected server response causes
        if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
            raise UserError(
                f"{key}: this repository lacks the {CONFIG_FILE} or {BEST} of a run. Publish one with "
                "`python -m trainer push RUN USER/NAME`."
            ) from error
        cause = error.__cause__ or error
        status = getattr(getattr(cause, "response", None), "status_code", None)
        if status in (401, 403, 404) or isinstance(error, LocalTokenNotFoundError):
            raise UserError(
                f"{key}: there is no such repository or revision, or you may not read it. Check the name. To log in, "
                "run `hf auth login` or set HF_TOKEN."
            ) from error
        if status or isinstance(error, ValueError):  # such as an invalid name or license
            raise UserError(
                f"{key}: the Hugging Face Hub rejects the request ({first_line(error).rstrip('.')})."
            ) from error
        text = first_line(cause).rstrip(".")
        raise UserError(f"{key}: the Hugging Face Hub cannot be reached ({text}). Check the network.") from error
