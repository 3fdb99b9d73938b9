"""Run FusionBench's own classes on the small network; `make conformance` does, in FusionBench's environment.

    python -m tests.conformance.fusion_small FOLDER [--seed 1]

Writes for each network FOLDER/NETWORK/base.safetensors, task_N.safetensors and data_N.safetensors, and what
FusionBench makes of them in float32/ and float64/ beside.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning
import torch
from fusion_bench.method import (
    FisherMergingForCLIPVisionModel,
    RegMeanAlgorithmForCLIP,
    SlerpMergeAlgorithm,
    WeightedAverageAlgorithm,
)
from fusion_bench.method.fisher_merging.fisher_merging import fisher_merging
from fusion_bench.modelpool import BaseModelPool
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.conformance.small import (
    EXAMPLES,
    NETWORKS,
    TASKS,
    Conv1D,
    Model,
    Small,
    examples,
    models,
    one_logit_loss,
)

BATCH = 16
LOADER = {"dataloader_kwargs": {"batch_size": BATCH}, "exclude_param_names_regex": []}


class Pool(BaseModelPool):  # type: ignore[misc]
    """Modules, and the examples of each."""

    def __init__(self, modules: dict[str, nn.Module], data: list[Model]) -> None:
        super().__init__(modules)
        self.data = data

    def load_train_dataset(self, dataset_name: str, *args: Any, **kwargs: Any) -> list[tuple[Tensor, int]]:
        data = self.data[int(dataset_name[-1])]
        return list(zip(data["tokens"], data["labels"].tolist(), strict=True))


class NoClip:
    """In place of what ties a class to CLIP: nothing to prepare, and the network's own logits."""

    clip_processor = None

    def setup_zero_shot_classification_head(self) -> None: ...

    def compute_logits(self, module: nn.Module, batch: Any, task: str) -> Tensor:
        found: Tensor = module(batch[0])
        return found


class RegMean(NoClip, RegMeanAlgorithmForCLIP):  # type: ignore[misc]
    """Keeps the second moments that it finds."""

    def get_regmean_weights(self, model_name: str, *args: Any, **kwargs: Any) -> Model:
        found: Model = super().get_regmean_weights(model_name, *args, **kwargs)
        self.__dict__.setdefault("found", {})[model_name] = {f"{n}.weight": t for n, t in found.items()}
        return found


class RegMeanTurned(RegMean):
    """For matrices stored (in, out), with the two settings that FusionBench's class for GPT-2 has."""

    _include_module_type = (Conv1D,)


class Fisher(NoClip, FisherMergingForCLIPVisionModel):  # type: ignore[misc]
    """Keeps the information that it finds."""

    def get_fisher_weights(self, model_name: str, *args: Any, **kwargs: Any) -> Model:
        found: Model = super().get_fisher_weights(model_name, *args, **kwargs)
        self.__dict__.setdefault("found", {})[model_name] = {n: t.clone() for n, t in found.items()}
        return found


class Trainer:
    """As much of one as `fisher_merging` looks at, with single examples for batches."""

    _train_batch_size = 1

    def __init__(self, data: Model) -> None:
        self.data = data

    def get_train_dataloader(self) -> list[Model]:
        return [{n: t[i : i + 1] for n, t in self.data.items()} for i in range(EXAMPLES)]

    def _prepare_inputs(self, inputs: Model) -> Model:
        return inputs


class WithLoss(Small):
    """One logit and a loss: FusionBench then differentiates that loss, of the labels that are given."""

    def forward(self, tokens: Tensor, labels: Tensor) -> Any:  # type: ignore[override]
        logits = super().forward(tokens)
        return SimpleNamespace(logits=logits, loss=one_logit_loss(logits, labels))


class Bench:
    """A network's base, experts and data, in one dtype, and the folder of what is made of them."""

    def __init__(self, folder: Path, network: str, dtype: torch.dtype, seed: int) -> None:
        self.network, self.dtype = network, dtype
        self.models = models(network, seed)
        self.data = [examples(network, 100 * seed + task) for task in range(TASKS)]
        inputs = dict(zip(("base", *(f"task_{i}" for i in range(TASKS))), self.models, strict=True))
        inputs |= {f"data_{i}": data for i, data in enumerate(self.data)}
        self.out = folder / network / str(dtype).removeprefix("torch.")
        self.out.mkdir(parents=True)
        for name, tensors in inputs.items():
            save_file(tensors, folder / network / f"{name}.safetensors")

    def module(self, model: Model, kind: type[Small] = Small) -> Small:
        made = kind(self.network).to(self.dtype)
        made.load_state_dict(model)
        return made

    def pool(self, *tasks: int, base: bool = True) -> Pool:
        """New modules each time: some classes write into what they are given."""
        held: dict[str, nn.Module] = {
            f"task_{i}": self.module(self.models[1 + i]) for i in tasks or range(TASKS)
        }
        return Pool({"_pretrained_": self.module(self.models[0]), **held} if base else held, self.data)

    def save(self, name: str, tensors: Model) -> None:
        save_file(
            {n: t.detach().contiguous().clone() for n, t in tensors.items()}, self.out / f"{name}.safetensors"
        )

    def merge(self, name: str, algorithm: Any, pool: Pool | None = None) -> None:
        algorithm._fabric_instance = lightning.Fabric(accelerator="cpu", devices=1)
        with contextlib.redirect_stdout(io.StringIO()):
            merged = algorithm.run(pool or self.pool())
        self.save(name, merged.state_dict())
        for task, found in getattr(algorithm, "found", {}).items():
            self.save(f"{name}_{task}", found)

    def without_data(self) -> None:
        weighted = {"weights": [0.5, 2.0, 1.5], "verbose": False}
        self.merge("slerp", SlerpMergeAlgorithm(t=0.3), self.pool(0, 2, base=False))
        self.merge("slerp_base", SlerpMergeAlgorithm(t=0.3), self.pool(1))
        self.merge("weighted_average", WeightedAverageAlgorithm(normalize=True, **weighted))
        self.merge("weighted_sum", WeightedAverageAlgorithm(normalize=False, **weighted))

    def regmean(self, name: str, ratio: float) -> None:
        turned = self.network == "turned"
        kind = RegMeanTurned if turned else RegMean
        options = {"reduce_non_diagonal_ratio": ratio, "weight_transpose": not turned}
        self.merge(name, kind(num_regmean_examples=EXAMPLES, **options, **LOADER))

    def fisher(self, name: str, normalize: bool, minimal: float) -> None:
        options = {"normalize_fisher_weight": normalize, "minimal_fisher_weight": minimal}
        self.merge(name, Fisher(num_fisher_examples=EXAMPLES, **options, **LOADER))

    def labelled(self, name: str, normalize: bool, minimal: float) -> None:
        experts = [self.module(model, WithLoss) for model in self.models[1:]]
        trainers, counts = [Trainer(data) for data in self.data], [EXAMPLES] * TASKS
        self.save(name, fisher_merging(experts, trainers, [], counts, None, normalize, minimal))

    def everything(self) -> None:
        if self.network == "labelled":
            self.labelled("fisher", normalize=False, minimal=0.0)
            self.labelled("fisher_normalized", normalize=True, minimal=1e-6)
            return
        if self.network == "empty":
            try:
                self.regmean("regmean", 1.0)
            except RuntimeError as error:
                (self.out / "regmean.txt").write_text(str(error))
            return
        self.regmean("regmean", 1.0)
        if self.network == "plain":
            self.without_data()
            self.regmean("regmean_half", 0.5)
            self.regmean("regmean_0.95", 0.95)
            self.fisher("fisher", normalize=False, minimal=0.0)
            self.fisher("fisher_normalized", normalize=True, minimal=1e-6)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1, help="of weights and data")
    asked = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    torch.manual_seed(asked.seed)
    for network in NETWORKS:
        for dtype in (torch.float32, torch.float64):
            Bench(asked.folder, network, dtype, asked.seed).everything()


if __name__ == "__main__":
    main()
