"""Where a result came from: versions, device, threads. No names, no paths."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
import torch

VERSION = "0.1.0"


def environment(device: torch.device | str = "cpu") -> dict[str, Any]:
    """What a reader needs to judge or repeat a result.

    >>> environment()["equipoise"] == VERSION
    True
    """
    device = torch.device(device)
    return {
        "equipoise": VERSION,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
    }
