"""What a number depends on beside its configuration: hardware, threads and versions."""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path

import torch

from structured_init.made_by import made_by

LIBRARIES = ("torch", "torchvision", "lightning", "timm", "transformers", "datasets")


def environment() -> dict[str, str | int]:
    """Return the processor, the threads of this process and the versions of what computes."""
    return {
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "structured-init": made_by(),
        **{name: version(name) for name in LIBRARIES},
    }


def _processor() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
