"""Silence on the network: hub, telemetry and update checks are off before any library that has them is imported."""

from __future__ import annotations

import os

SILENT = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_UPDATE_CHECK": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DISABLE_SAFETENSORS_CONVERSION": "1",
    "USE_HUB_KERNELS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "WANDB_MODE": "disabled",
}


def silence() -> None:
    """Set them all, whatever was set before: no network is the promise, not the default."""
    os.environ.update(SILENT)
    # vLLM learns its own address by connecting to a public name server's, unless it is told.
    os.environ.setdefault("VLLM_HOST_IP", "127.0.0.1")
