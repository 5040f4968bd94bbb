"""RepresentationCallback: see how similar the outputs of blocks are, before and after training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from callbacks.before_after import BeforeAndAfter, runnable
from callbacks.samples import probe_batch
from structured_init.analysis.cka import gram_matrices, repeated_blocks
from structured_init.util.arguments import check_whole
from structured_init.util.errors import StructuredInitError


class RepresentationCallback(BeforeAndAfter):
    """Write Gram matrices of every block's output on fixed samples, before and after training.

    ``<log_dir>/representations/{before,after}.safetensors`` hold a tensor (minibatches, m, m) per block in float32,
    from which ``structured_init.analysis.cka_matrix`` compares any two blocks of any two runs on the same data.
    A model without repeated blocks, or data with fewer than four samples, gives a line and no files. For resumed runs
    and errors see :class:`BeforeAndAfter`.

    Args:
        samples: size of the probe, from validation data, else from training data.
        batch_size: m, samples per minibatch; samples beyond a multiple of it are left out.
        seed: of the choice of samples.
        enabled: false does nothing at all.

    Raises:
        StructuredInitError: ``batch_size`` is below 4 or above ``samples``.
    """

    what = "representations"

    def __init__(self, samples: int = 256, batch_size: int = 64, seed: int = 0, enabled: bool = True) -> None:
        check_whole("RepresentationCallback", samples=samples, batch_size=batch_size)
        if not 4 <= batch_size <= samples:
            raise StructuredInitError(
                f"RepresentationCallback: batch_size must be from 4 to samples ({samples}), got {batch_size}"
            )
        super().__init__(enabled)
        self.samples, self.batch_size, self.seed = samples, batch_size, seed

    def look(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Tensor]:
        probe = probe_batch(trainer, pl_module, self.samples, self.seed)
        blocks = repeated_blocks(pl_module)
        with trainer.precision_plugin.forward_context():
            return gram_matrices(
                runnable(trainer, pl_module), probe.inputs, blocks=blocks, batch_size=self.batch_size, **probe.named
            )

    def write(self, phase: str, folder: Path, trainer: Trainer, seen: dict[str, Tensor]) -> dict[str, Any]:
        return self.save(phase, folder, {name: gram.float() for name, gram in seen.items()})
