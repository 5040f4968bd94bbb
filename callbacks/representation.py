"""RepresentationCallback: keep what a model makes of fixed samples before and after training, for comparisons."""

from __future__ import annotations

import shutil
from pathlib import Path

from lightning.pytorch import LightningModule, Trainer
from safetensors.torch import save_file
from torch import Tensor

from callbacks.before_after import BeforeAndAfter, write_on_rank_zero
from callbacks.probe_batch import probe_batch
from structured_init.analysis.representations import gram_matrices, repeated_blocks
from structured_init.arguments import check_whole
from structured_init.errors import StructuredInitError
from structured_init.files import replacing


class RepresentationCallback(BeforeAndAfter):
    """Write Gram matrices of every block's output on fixed samples, before and after training.

    ``<log_dir>/representations/{before,after}.safetensors`` hold a tensor (minibatches, m, m) per block in float32,
    from which ``structured_init.analysis.cka_matrix`` compares any two blocks of any two runs on the same data.
    Training is bit-identical with and without the callback. ``before`` is taken when training starts at step 0; its
    path travels in the checkpoint, and a resumed run that writes elsewhere gets a copy. A model without repeated
    blocks, or data with fewer than four samples, gives a line and no files.

    Args:
        samples: size of the probe, from validation data, else from training data.
        batch_size: m, samples per minibatch; samples beyond a multiple of it are left out.
        seed: of the choice of samples.
        enabled: false does nothing at all.

    Attributes:
        before: path of the matrices before training, None where there are none.

    Raises:
        StructuredInitError: before training, the files cannot be written. What goes wrong otherwise is a warning and
            an entry in ``missing.json``.
    """

    def __init__(self, samples: int = 256, batch_size: int = 64, seed: int = 0, enabled: bool = True) -> None:
        check_whole("RepresentationCallback", samples=samples, batch_size=batch_size)
        check_whole("RepresentationCallback", least=None, seed=seed)
        if not 4 <= batch_size <= samples:
            raise StructuredInitError(
                f"RepresentationCallback: batch_size must be from 4 to samples ({samples}), got {batch_size}"
            )
        super().__init__(enabled)
        self.samples, self.batch_size, self.seed = samples, batch_size, seed

    def capture(self, phase: str, trainer: Trainer, pl_module: LightningModule) -> str | None:
        """Capture where the weights are, write on rank zero, and tell every rank how it went."""
        folder = Path(trainer.log_dir or trainer.default_root_dir) / "representations"  # a collective: every rank asks
        return write_on_rank_zero(
            trainer,
            "representations",
            phase,
            lambda: self._grams(trainer, pl_module),
            lambda grams: self._write(phase, folder, grams),
        )

    def _grams(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Tensor]:
        probe = probe_batch(trainer, pl_module, self.samples, self.seed)
        # FSDP1 gathers the weights of the root in the wrapper's forward, not in the module's.
        model = trainer.strategy.model if type(trainer.strategy).__name__ == "FSDPStrategy" else pl_module
        blocks = repeated_blocks(pl_module)
        with trainer.precision_plugin.forward_context():
            return gram_matrices(model, *probe.inputs, blocks=blocks, batch_size=self.batch_size, **probe.named)

    def _write(self, phase: str, folder: Path, grams: dict[str, Tensor]) -> str:
        final = folder / f"{phase}.safetensors"
        with replacing(final) as temporary:
            save_file({name: gram.float().contiguous() for name, gram in grams.items()}, temporary)
        before = Path(self.before) if phase == "after" and self.before is not None else None
        if before is not None and before.is_file() and not (folder / before.name).exists():
            with replacing(folder / before.name) as temporary:
                shutil.copyfile(before, temporary)
        return str(final.absolute())
