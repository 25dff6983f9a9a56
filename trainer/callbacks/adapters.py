"""The callback for LoRA runs (`model.lora`). It saves the weights that are not trained (the base) only once."""

from hashlib import sha256

from augment.support.errors import UserError
from augment.support.files import write_atomically
from trainer.loop.callback import Callback
from trainer.loop.lazy_learner import Learner
from trainer.models.lora import base_state

BASE = "base.safetensors"


class Adapters(Callback):
    """Keeps batch-norm statistics fixed, and saves the base in a separate file, so that last.pt stays small.

    A resumed run reads the base from the folder in `fit.resume`, because the original weights may be gone.
    """

    saves = ("digest",)
    digest = ""  # SHA-256 of the file, to detect the base of another run

    def before_fit(self, learner: Learner) -> None:
        from safetensors.torch import save

        content = save({name: tensor.cpu().contiguous() for name, tensor in base_state(learner.model).items()})
        was, self.digest = self.digest, sha256(content).hexdigest()
        if was not in ("", self.digest):
            raise UserError(f"fit.resume: the {BASE} in that folder belongs to another run. Restore the original file.")
        if learner.folder is not None:
            write_atomically(learner.folder / BASE, content)

    def before_train(self, learner: Learner) -> None:
        """Put batch norms into evaluation mode."""
        for module in learner.model.modules():
            if hasattr(module, "running_mean"):
                module.eval()
