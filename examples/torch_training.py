"""The same with PyTorch: `torch_training.py run.pt --steps 1000`. training.py says what its statuses mean.

gpushare empties PyTorch's cache by itself before it sends SIGTERM. It is the memory of the model, its gradients and its
optimizer that only the program can give up.
"""

from __future__ import annotations

import argparse
import signal
from pathlib import Path
from typing import Any

import torch

try:
    import gpushare
except ImportError:
    gpushare = None  # type: ignore[assignment]

START_AGAIN = 75


def save(path: Path, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    part = path.with_suffix(".part")
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, part)
    part.replace(path)
    if gpushare is not None:
        gpushare.checkpointed()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()

    asked = False

    def on_sigterm(_signal: int, _frame: object) -> None:
        nonlocal asked
        asked = True

    signal.signal(signal.SIGTERM, on_sigterm)
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = 0
    if options.checkpoint.exists():
        found: dict[str, Any] = torch.load(options.checkpoint, map_location=options.device, weights_only=True)
        step = found["step"]
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
    print(f"from step {step}", flush=True)
    while step < options.steps:
        batch = torch.Generator().manual_seed(step)  # a step has the same data whenever it runs
        inputs = torch.randn(512, 64, generator=batch).to(options.device)
        loss = torch.nn.functional.mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        step += 1
        if asked or step % options.every == 0 or step == options.steps:
            save(options.checkpoint, step, model, optimizer)
        if asked and step < options.steps:
            print(f"stopped at step {step}, saved", flush=True)
            return START_AGAIN
    print(f"done, loss {loss.item():.6f}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
